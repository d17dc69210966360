"""The compute thread: micro-steps flow, everything else runs alone, a pause finishes what is in flight."""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from workers.cell.training.compute import Answer, ComputeThread


class Flow:
    """Takes two, finishes the oldest; writes down what happens."""

    def __init__(self) -> None:
        self.flying: list[tuple[Any, Answer]] = []
        self.done: list[str] = []
        self.broken = False

    @property
    def in_flight(self) -> int:
        return len(self.flying)

    def feed(self, request: Any, generation: int, abandoned: Callable[[], bool], answer: Answer) -> None:
        self.done.append(f"feed {request}")
        self.flying.append((request, answer))
        if self.in_flight == 2:
            self.advance()

    def advance(self) -> None:
        if self.broken:
            lost, self.flying = self.flying, []
            for _, answer in lost:
                answer(RuntimeError("lost"))
            raise RuntimeError("broken")
        request, answer = self.flying.pop(0)
        self.done.append(f"end {request}")
        answer(request)


@pytest.fixture
def flow() -> Flow:
    return Flow()


@pytest.fixture
def thread(flow: Flow) -> ComputeThread:
    return ComputeThread(flow)


def held(thread: ComputeThread) -> threading.Event:
    """Keeps the thread busy until set, so that what comes next queues up."""
    go = threading.Event()
    thread.alone(lambda: go.wait(120))
    return go


def feeding(flow: Flow, name: str) -> Callable[[Answer], None]:
    return lambda answer: flow.feed(name, 0, lambda: False, answer)


def test_micro_steps_overlap_and_a_pause_finishes_them(flow: Flow, thread: ComputeThread) -> None:
    go = held(thread)
    futures = [thread.flowing(feeding(flow, name)) for name in "abc"]
    go.set()
    assert [future.result(120) for future in futures] == ["a", "b", "c"]
    assert flow.done == ["feed a", "feed b", "end a", "feed c", "end b", "end c"]


def test_what_runs_alone_finds_nothing_in_flight(flow: Flow, thread: ComputeThread) -> None:
    go = held(thread)
    first = thread.flowing(feeding(flow, "a"))
    alone = thread.alone(lambda: (flow.in_flight, list(flow.done)))
    last = thread.flowing(feeding(flow, "b"))
    go.set()
    assert alone.result(120) == (0, ["feed a", "end a"])
    assert (first.result(120), last.result(120)) == ("a", "b")


def test_an_error_is_the_callers_and_the_thread_goes_on(flow: Flow, thread: ComputeThread) -> None:
    def refuse(_answer: Answer) -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        thread.flowing(refuse).result(120)
    with pytest.raises(ZeroDivisionError):
        thread.alone(lambda: 1 / 0).result(120)
    assert thread.alone(lambda: "still here").result(120) == "still here"


def test_a_flow_that_breaks_tells_everybody_in_it(flow: Flow, thread: ComputeThread) -> None:
    go = held(thread)
    future = thread.flowing(feeding(flow, "a"))
    flow.broken = True
    go.set()
    with pytest.raises(RuntimeError, match="lost"):
        future.result(120)
    assert thread.alone(lambda: "still here").result(120) == "still here"


def test_what_is_cancelled_while_it_waits_never_runs(flow: Flow, thread: ComputeThread) -> None:
    go = held(thread)
    future = thread.alone(lambda: flow.done.append("ran"))
    assert future.cancel()
    go.set()
    thread.alone(lambda: None).result(120)
    with pytest.raises(CancelledError):
        future.result(120)
    assert flow.done == []

"""Which cell stands still, and which only takes long."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.cell.training.model import build_model
from workers.cell.training.pipeline import process
from workers.cell.training.pipeline.children import KEY_VARIABLE, LOST_EXIT
from workers.cell.training.pipeline.orders import Order, Report
from workers.cell.training.pipeline.pulse import STALLED_LOOKS, Progress, StallRule, StallWatch, Stillness

ROOT = Path(__file__).parents[4]


def test_a_value_is_still_as_long_as_it_stays():
    still = Stillness()
    assert [still.looks(value) for value in (1, 1, 1, 2, 2, None, None, 2)] == [0, 1, 2, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("first_waits", "any_computes", "moves", "looks"),
    [
        (True, False, False, 3),  # a deadlock: everybody waits for somebody
        (True, True, False, 7),  # a long pass is given much longer, but not for ever
        (True, False, True, None),  # slow, and moving
        (False, False, False, None),  # nothing is owed: the cell is idle
        (False, True, False, None),
    ],
)
def test_who_stands_still(first_waits, any_computes, moves, looks):
    rule = StallRule(stalled_looks=3, busy_looks=7)
    verdicts = [
        rule.is_stalled(first_waits=first_waits, any_computes=any_computes, moved=look if moves else 5)
        for look in range(20)
    ]
    assert (verdicts.index(True) if True in verdicts else None) == looks


def test_progress_is_what_a_stage_is_at():
    progress = Progress()
    seen = [(progress.is_computing, progress.is_waiting, progress.moved)]
    with progress.computing():
        seen.append((progress.is_computing, progress.is_waiting, progress.moved))
        with progress.waiting():
            seen.append((progress.is_computing, progress.is_waiting, progress.moved))
        seen.append((progress.is_computing, progress.is_waiting, progress.moved))
    seen.append((progress.is_computing, progress.is_waiting, progress.moved))
    assert seen == [(False, False, 0), (True, False, 0), (False, True, 0), (True, False, 1), (False, False, 2)]


def test_a_stall_is_one_of_all_stages():
    """One stage has not been heard yet, then it computes, then it waits as well."""
    first, beats, stalls = Progress(), [Report(op="beat", moved=4), None], []
    watch = StallWatch(first, lambda: beats, lambda: stalls.append("stalled"))
    with first.waiting():
        assert not any(watch.look() for _ in range(3 * STALLED_LOOKS))
        beats[1] = Report(op="beat", moved=1, is_computing=True)
        assert not any(watch.look() for _ in range(3 * STALLED_LOOKS))
        beats[1] = Report(op="beat", moved=2)
        assert [watch.look() for _ in range(STALLED_LOOKS + 1)] == [False] * STALLED_LOOKS + [True]
    assert stalls == ["stalled"]


def test_an_accelerator_is_at_work_when_nobody_s_thread_is():
    """A thread hands a pass over in no time; what it takes is seen on the device alone."""
    first, beats = Progress(), [Report(op="beat")]
    watch = StallWatch(first, lambda: beats, lambda: None)
    first.is_device_busy = lambda: True
    with first.waiting():
        assert first.is_at_work
        assert not any(watch.look() for _ in range(3 * STALLED_LOOKS))
        first.is_device_busy = lambda: False
        assert watch.look()


def test_a_stage_that_is_still_being_built_computes(policy, monkeypatch):
    """A replica is built while the first stage waits for it to load its weights: with a large model, for minutes."""
    beats, seen = [], []

    class Line:
        def __init__(self, *_: object, beat: Callable[[], Report], **__: object) -> None:
            beats.append(beat)

        def receive(self) -> tuple[Order, bytes]:
            seen.append(beats[0]().is_computing)
            return Order(op="end"), b""

    def built(*arguments: Any, **more: Any) -> Any:
        seen.append(beats[0]().is_computing)
        return build_model(*arguments, **more)

    options = SimpleNamespace(
        stage=0, stages=1, model=policy, control=0, threads=1, dtype="float32", beat_seconds=1.0, parent=0
    )
    monkeypatch.setattr(process, "arguments", lambda: options)
    monkeypatch.setattr(process, "die_with_parent", lambda parent: None)
    monkeypatch.setattr(process.signal, "signal", lambda *_: None)
    monkeypatch.setattr(
        "multiprocessing.connection.Client",
        lambda *_, **__: SimpleNamespace(send_bytes=lambda data: None, recv_bytes=lambda: b"1"),
    )
    monkeypatch.setattr("workers.cell.training.pipeline.orders.Frames", Line)
    monkeypatch.setattr("workers.cell.training.model.build_model", built)
    monkeypatch.setattr("workers.cell.training.backend.is_device_busy", lambda where: len(seen) > 2)
    monkeypatch.setenv(KEY_VARIABLE, "key")
    process.main()
    assert seen == [True, False]
    assert beats[0]().is_computing is False
    seen.append("a pass is on its way")
    assert beats[0]().is_computing is True, "its device is at work"


HANGS = """
import os, signal, sys
from pathlib import Path

def main():
    from workers.cell.training.pipeline.children import StageProcesses
    from workers.cell.training.pipeline.launch import start_stream
    from workers.cell.training.weights_state import HeldWeights

    policy = Path(sys.argv[1])
    processes = StageProcesses(policy, 2, 1, beat_seconds=1.0)
    stream = start_stream(processes, [])
    stream.hold(HeldWeights(0, "first"))
    print("held", flush=True)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGSTOP)
    for version in range(1, 1000):  # until the stage's end of the line is full, or it is asked for an answer
        stream.hold(HeldWeights(version, "more"))

main()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_stage_that_is_stopped_is_noticed_although_its_process_lives(policy):
    done = subprocess.run(
        [sys.executable, "-c", HANGS, str(policy)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
    )
    assert (done.returncode, done.stdout) == (LOST_EXIT, "held\n"), done.stderr[-2000:]
    # Both looks take as long: whichever is first says what it saw.
    assert "the other side has" in done.stderr or "nothing moves in any other" in done.stderr

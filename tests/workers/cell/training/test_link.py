"""What a stage keeps of what it has sent. The communicators stand in for Megatron's and only write down."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from workers.cell.training.pipeline import link as links
from workers.cell.training.pipeline.link import MegatronLink
from workers.cell.training.pipeline.schedule import StageSchedule

STAGES = 2


class Request:
    def __init__(self) -> None:
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    made: list[Request] = []

    def communicate(**_: object) -> tuple[None, None, dict[str, Request]]:
        made.append(Request())
        return None, None, {"send": made[-1]}

    monkeypatch.setattr(links, "P2PCommunicator", lambda *_: SimpleNamespace(_communicate=communicate))
    return made


@pytest.fixture
def link(requests: list[Request]) -> MegatronLink:
    model = nn.Linear(1, 1)
    model.config = SimpleNamespace(hidden_size=4, pipeline_dtype=torch.float32)  # pyright: ignore
    group = SimpleNamespace(size=lambda: STAGES)
    return MegatronLink(model, group, group)  # pyright: ignore[reportArgumentType]


def test_it_keeps_the_memory_but_not_the_graph(link: MegatronLink) -> None:
    hidden = torch.ones(3, 1, 4, requires_grad=True) * 2
    link.send_forward(hidden)
    ((kept, _),) = link._leaving
    assert kept.data_ptr() == hidden.data_ptr()
    assert kept.grad_fn is None


def test_it_keeps_no_more_than_a_full_pipeline_sends(link: MegatronLink, requests: list[Request]) -> None:
    for _ in range(3 * STAGES + 2):
        link.send_forward(torch.zeros(1, 1, 4))
    assert len(link._leaving) == 3 * STAGES
    assert [request.waits for request in requests] == [1, 1] + [0] * 3 * STAGES


def test_with_nothing_in_flight_it_lets_go_of_all(link: MegatronLink, requests: list[Request]) -> None:
    schedule = StageSchedule(nn.Linear(1, 1), link, 0, STAGES)  # pyright: ignore[reportArgumentType]
    link.send_backward(torch.zeros(1, 1, 4))
    schedule._flights.append(None)  # pyright: ignore[reportArgumentType]
    schedule.settle()
    assert len(link._leaving) == 2
    schedule._flights.clear()
    schedule.settle()
    assert not link._leaving
    assert [request.waits for request in requests] == [1, 1]

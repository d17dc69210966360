"""What a stage counts as computing: its passes, and not handing on what they made."""

import time
from pathlib import Path

from torch import Tensor

from infra.weights.architecture import Architecture
from tests.workers.cell.training.material import pack, sampled
from tests.workers.cell.training.staged import QueueLink
from workers.cell.training.model import build_model
from workers.cell.training.parts import stages_of
from workers.cell.training.pipeline.stage import Stage, loss_of
from workflows.messages.loss import LossSettings


class WatchedLink(QueueLink):
    """Notes when it is asked to send."""

    def __init__(self, before: QueueLink | None = None) -> None:
        super().__init__(before)
        self.asked: list[float] = []

    def send_forward(self, hidden: Tensor) -> None:
        self.asked.append(time.perf_counter())
        super().send_forward(hidden)

    def send_backward(self, gradient: Tensor | None) -> None:
        self.asked.append(time.perf_counter())
        super().send_backward(gradient)


def test_a_pass_ends_before_its_result_is_sent(policy: Path) -> None:
    arch, step = Architecture.from_folder(policy), pack([sampled("a", 1.0, 4, 6)])
    down = WatchedLink()
    up = WatchedLink(down)
    first, last = (
        Stage(build_model(arch, part), link, number, 2)
        for number, (part, link) in enumerate(zip(stages_of(arch, 2), (down, up), strict=True))
    )
    for stage in (first, last):
        stage.allocate()
        stage.schedule.forward(0, stage.tensors(step), loss_of(step, LossSettings(), None, lambda _: None))
    for stage in (last, first):
        stage.schedule.backward()
    (_, _, forward), _ = first.schedule.usage.passes
    _, (_, _, backward) = last.schedule.usage.passes
    assert forward <= down.asked[0]
    assert backward <= up.asked[0]

"""Stages in other processes, in order, as the front sees them: orders out, answers in."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infra.weights.layout import FlatLayout
from workers.cell.training.parts import EMBEDDING, HEAD
from workers.cell.training.pipeline.orders import Frames, Op, Order, Report, as_bytes, as_tensor
from workers.cell.training.pipeline.pulse import BUSY_SECONDS, Progress
from workers.cell.training.pipeline.schedule import Usage
from workflows.messages.errors import ActorUnavailable, GyreError, Permanent
from workflows.messages.loss import LossSettings
from workflows.messages.training import TokenMetrics


@dataclass(frozen=True)
class Work:
    """A micro-step as it goes to stages: its blob, and what only the last one needs."""

    number: int
    blob: bytes
    settings: LossSettings
    reference: bytes = b""


class Chain:
    """`layouts` are those of the stages' parts of the model, `dtype` theirs; `progress` is the first stage's."""

    def __init__(
        self,
        frames: Sequence[Frames],
        layouts: Sequence[FlatLayout],
        dtype: torch.dtype,
        progress: Progress | None = None,
    ) -> None:
        self.frames, self._layouts, self._dtype = tuple(frames), tuple(layouts), dtype
        self.progress = progress or Progress()

    def tell(self, order: Order, data: bytes = b"") -> None:
        for frames in self.frames:
            frames.send(order, data)

    def feed(self, work: Work) -> None:
        """Have all stages do its forward pass, and the backward passes that come due by it."""
        for frames in self.frames:
            tail = work.reference if frames is self.frames[-1] else b""
            order = Order(op="forward", number=work.number, loss=work.settings, reference=len(tail))
            frames.send(order, work.blob + tail)

    def send_weights(self, named: Mapping[str, Tensor]) -> None:
        """Give each stage its part of `named`; `loaded` waits until they have it."""
        for frames, layout in zip(self.frames, self._layouts, strict=True):
            flat = torch.empty(layout.elements, dtype=self._dtype)
            for name, view in layout.views(flat).items():
                view.copy_(named[name])
            frames.send(Order(op="weights"), as_bytes(flat))

    def loaded(self) -> None:
        for frames in self.frames:
            self.answer(frames, "weights")

    def gradient(self) -> dict[str, Tensor]:
        """The stages' sums by the whole's names, when they have been told to hand them in."""
        found: dict[str, Tensor] = {}
        for frames, layout in zip(self.frames, self._layouts, strict=True):
            found |= layout.views(as_tensor(self.answer(frames, "gradient")[1], self._dtype))
        return found

    def usage(self) -> list[Usage]:
        reports = [self.answer(frames, "usage")[0] for frames in self.frames]
        return [Usage(one.busy_seconds, one.waiting_seconds, deque(one.passes)) for one in reports]

    def answer(self, frames: Frames, op: Op) -> tuple[Report, bytes]:
        """A stage's next answer, which must be to `op`. One that hangs is given up (see `pulse`)."""
        with self.progress.waiting():
            report, data = frames.receive(BUSY_SECONDS)
        if not isinstance(report, Report) or report.op != op:
            raise ActorUnavailable(f"a stage answered {report!r} to {op}")
        return report, data

    def close(self) -> None:
        """Let the stages end."""
        for frames in self.frames:
            frames.send(Order(op="end"))
            frames.close()


def add_up(into: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Add a whole model's sums to `into`; where the model ties its head, both uses of the embedding."""
    for name, view in into.items():
        view += found[name]
        if name == EMBEDDING and HEAD not in into and HEAD in found:
            view += found[HEAD]


def result_of(report: Report, number: int) -> TokenMetrics | GyreError:
    """What the last stage said of micro-step `number`."""
    if report.number != number:
        raise ActorUnavailable(f"micro-step {report.number} is reported, {number} was due")
    if report.metrics is not None:
        return report.metrics
    return Permanent(report.refused[1] if report.refused else f"micro-step {number} was refused without a reason")

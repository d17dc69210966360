"""The first stage, which the actor lives in: it feeds the pipeline, keeps the whole's weights and gathers gradients.

Failing is simple: a stage that is gone takes the process down with it (`lost`), the cell boots again, and only its own
micro-steps go back into the stream.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infra.micro_steps import PackedMicroStep, encode
from infra.transfer import TransferEndpoint
from infra.weights.layout import FlatLayout
from workers.cell.training.gradients import GradientBuffer
from workers.cell.training.loss import micro_step_loss
from workers.cell.training.parts import EMBEDDING, HEAD, with_head
from workers.cell.training.pipeline.orders import Frames, Order, Report, as_bytes, as_tensor
from workers.cell.training.pipeline.schedule import Usage
from workers.cell.training.pipeline.stage import Stage, usage_of
from workers.cell.training.stream import Fed, ReferenceLogprobs, no_reference
from workers.cell.training.weights_state import HeldWeights
from workers.cell.training.whole import HostPolicy
from workflows.messages import errors
from workflows.messages.errors import ActorUnavailable, GyreError, Permanent
from workflows.messages.loss import LossSettings
from workflows.messages.training import TokenMetrics


@dataclass(frozen=True)
class _Waiting:
    number: int
    step: PackedMicroStep
    fed: Fed


class Pipeline:
    """A MicroStepStream. `stage` is the first stage, `others` the connections to the rest, in order, with their
    layouts; `abandon` ends this process. One caller, the compute thread."""

    def __init__(
        self,
        whole: HostPolicy,
        stage: Stage,
        others: Sequence[Frames],
        layouts: Sequence[FlatLayout],
        abandon: Callable[[], None],
    ) -> None:
        self.whole, self.stage = whole, stage
        self.reference: ReferenceLogprobs = no_reference
        self._others, self._layouts, self._abandon = tuple(others), tuple(layouts), abandon
        self._waiting: deque[_Waiting] = deque()
        self._held: HeldWeights | None = None
        self._number = 0
        self.sums = 0
        """Counts what changed the gradient sums: micro-steps fed and fresh starts."""

    # -- weights and gradients, with nothing in flight -----------------------------------------------------------------

    def hold(self, weights: HeldWeights) -> None:
        """Have every stage compute with the whole's weights, which are `weights`; nothing moves if they do already."""
        if self._held == weights:
            return
        named = {name: parameter.detach() for name, parameter in self.whole.named_parameters()}
        named = with_head(self.whole.arch, named)
        for frames, layout in zip(self._others, self._layouts, strict=True):
            flat = torch.empty(layout.elements, dtype=self.stage.model.dtype)
            for name, view in layout.views(flat).items():
                view.copy_(named[name])
            frames.send(Order(op="weights"), as_bytes(flat))
        self.stage.load(named)
        for frames in self._others:
            self._answer(frames, "weights")
        self._held = weights

    def allocate(self) -> None:
        self._tell(Order(op="allocate"))
        self.stage.allocate()

    def free(self) -> None:
        self._tell(Order(op="free"))
        self.stage.free()

    def zero(self) -> None:
        self.sums += 1
        self._tell(Order(op="zero"))
        self.stage.zero()

    def gather(self, into: dict[str, Tensor]) -> None:
        """Write the stages' sums into the whole's views. A tied model's embedding has the sums of both its uses."""
        self._tell(Order(op="gradient"))
        found = self.stage.layout.views(self.stage.gradient().cpu())
        for frames, layout in zip(self._others, self._layouts, strict=True):
            found |= layout.views(as_tensor(self._answer(frames, "gradient")[1], self.stage.model.dtype))
        for name, view in into.items():
            view.copy_(found[name])
        if HEAD not in into:
            into[EMBEDDING] += found[HEAD]

    def look(self, step: PackedMicroStep) -> Tensor:
        """Logits [r, vocab] of a micro-step, forward only."""
        self.drain()
        self._tell(Order(op="look"), encode(step))
        self.stage.schedule.look(self.stage.tensors(step))
        data = self._answer(self._others[-1], "look")[1]
        return as_tensor(data, self.stage.model.dtype).view(-1, self.whole.arch.vocab_size)

    def usage(self) -> list[Usage]:
        """Of each stage since last asked."""
        self._tell(Order(op="usage"))
        reports = [usage_of(self.stage.schedule)]
        reports += [self._answer(frames, "usage")[0] for frames in self._others]
        return [Usage(one.busy_seconds, one.waiting_seconds, deque(one.passes)) for one in reports]

    def gradient_buffer(self, endpoint: TransferEndpoint) -> GradientBuffer:
        return StagedGradients(self, endpoint)

    # -- the stream ----------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def feed(self, step: PackedMicroStep, settings: LossSettings, fed: Fed) -> None:
        """See MicroStepStream."""
        tensors = self.stage.tensors(step)
        if not len(tensors.rows):
            empty = torch.zeros(0, self.whole.arch.vocab_size)
            fed(micro_step_loss(empty, step, settings, self.reference(step, settings)).metrics)
            return
        reference = self.reference(step, settings)
        tail = as_bytes(reference.to(self.stage.model.dtype)) if reference is not None else b""
        number, self._number, self.sums = self._number, self._number + 1, self.sums + 1
        blob = encode(step)
        for frames in self._others:
            mine = tail if frames is self._others[-1] else b""
            frames.send(Order(op="forward", number=number, loss=settings, reference=len(mine)), blob + mine)
        self._waiting.append(_Waiting(number, step, fed))
        self.stage.schedule.forward(number, tensors, _no_loss)
        while self.stage.schedule.in_flight >= self.stage.schedule.room:
            self._finish_oldest()

    def advance(self) -> None:
        """No more is there for now: have the oldest one's backward passes done."""
        oldest = self.stage.schedule.oldest
        if oldest is not None:
            self._tell(Order(op="backward", number=oldest))
            self._finish_oldest()

    def drain(self) -> None:
        """All stages at the same point, with nothing in between."""
        while self.in_flight:
            self.advance()

    def run(self, step: PackedMicroStep, settings: LossSettings) -> TokenMetrics:
        """Feed one and finish it. Raises what it was refused for."""
        results: list[TokenMetrics | GyreError] = []
        self.feed(step, settings, results.append)
        self.drain()
        if isinstance(results[0], GyreError):
            raise results[0]
        return results[0]

    def break_off(self) -> None:
        """Stages that stand at different points cannot be brought together again: the cell has to boot."""
        self._abandon()

    def close(self) -> None:
        """Let the other stages end."""
        for frames in self._others:
            frames.send(Order(op="end"))
            frames.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _finish_oldest(self) -> None:
        number, is_in_the_sum = self.stage.schedule.backward()
        report, _ = self._answer(self._others[-1], "forward")
        waiting = self._waiting.popleft()
        if not waiting.number == number == report.number:
            raise ActorUnavailable(f"micro-step {number} ended, {waiting.number} was due, {report.number} is reported")
        if report.metrics is not None and is_in_the_sum:
            waiting.fed(report.metrics)
        else:
            waiting.fed(_refusal(report))

    def _tell(self, order: Order, data: bytes = b"") -> None:
        for frames in self._others:
            frames.send(order, data)

    def _answer(self, frames: Frames, op: str) -> tuple[Report, bytes]:
        report, data = frames.receive()
        if not isinstance(report, Report) or report.op != op:
            raise ActorUnavailable(f"a stage answered {report!r} to {op}")
        return report, data


class StagedGradients(GradientBuffer):
    """The whole's gradient sum of a cell with stages: gathered when the sum is complete, then read like any other."""

    def __init__(self, pipeline: Pipeline, endpoint: TransferEndpoint) -> None:
        self._pipeline = pipeline
        self._gathered = -1
        super().__init__(pipeline.whole, endpoint)
        pipeline.allocate()
        pipeline.zero()

    def attach(self) -> None:
        """Nothing to do here: each stage's backward passes add into its own sum."""

    def is_attached(self) -> bool:
        """Each stage looks for itself when it hands its sum in."""
        return True

    def zero(self) -> None:
        super().zero()
        self._pipeline.zero()

    def complete(self) -> None:
        if self._gathered != self._pipeline.sums:
            self._pipeline.gather(self.views)
            self._gathered = self._pipeline.sums

    def close(self) -> None:
        super().close()
        self._pipeline.free()


def _refusal(report: Report) -> GyreError:
    name, text = report.refused or ("Permanent", f"micro-step {report.number} was refused without a reason")
    kind = getattr(errors, name, None)
    return kind(text) if kind is Permanent else Permanent(text)


def _no_loss(_logits: Tensor) -> tuple[Tensor, bool]:
    raise RuntimeError("the first stage of several has no loss")

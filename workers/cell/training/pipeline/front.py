"""The first stage, which the actor lives in: it feeds the pipeline, keeps the whole's weights and gathers gradients.

Failing is simple: a stage that is gone takes the process down with it, the cell boots again, and only its own
micro-steps go back into the stream.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from infra.micro_steps import PackedMicroStep, encode
from infra.transfer import TransferEndpoint
from workers.cell.training.gradients import GradientBuffer
from workers.cell.training.loss import micro_step_loss
from workers.cell.training.parts import with_head
from workers.cell.training.pipeline.chain import Chain, Work, add_up, result_of
from workers.cell.training.pipeline.orders import Order, as_bytes, as_tensor
from workers.cell.training.pipeline.schedule import Usage
from workers.cell.training.pipeline.stage import Stage, loss_of
from workers.cell.training.stream import Fed, ReferenceLogprobs, no_reference
from workers.cell.training.weights_state import HeldWeights
from workers.cell.training.whole import HostPolicy
from workflows.messages.errors import GyreError
from workflows.messages.loss import LossSettings
from workflows.messages.training import TokenMetrics


@dataclass(frozen=True)
class _Waiting:
    number: int
    fed: Fed


class Pipeline:
    """A MicroStepStream. `stage` is the first stage, `others` the rest, none if it is the only one; `abandon` ends this
    process. One caller, the compute thread."""

    def __init__(self, whole: HostPolicy, stage: Stage, others: Chain, abandon: Callable[[], None]) -> None:
        self.whole, self.stage = whole, stage
        self.reference: ReferenceLogprobs = no_reference
        self.others, self._abandon = others, abandon
        self._waiting: deque[_Waiting] = deque()
        self._own_results: deque[TokenMetrics | GyreError] = deque()
        self._held: HeldWeights | None = None
        self._number = 0
        self.is_intact = True
        self.sums = 0
        """Counts what changed the gradient sums: micro-steps fed and fresh starts."""

    def use_reference(self, reference: ReferenceLogprobs) -> None:
        """Its log-probs are computed here, by one whole copy of the reference policy, and go to the last stage."""
        self.reference = reference

    # -- weights and gradients, with nothing in flight -----------------------------------------------------------------

    def hold(self, weights: HeldWeights) -> None:
        """Have every stage compute with the whole's weights, which are `weights`; nothing moves if they do already."""
        if self._held == weights:
            return
        named = self.named()
        self.others.send_weights(named)
        self.stage.load(named)
        self.others.loaded()
        self._held = weights

    def named(self) -> dict[str, Tensor]:
        """The whole's weights, the head under a name of its own."""
        return with_head(self.whole.arch, {name: one.detach() for name, one in self.whole.named_parameters()})

    def allocate(self) -> None:
        self.others.tell(Order(op="allocate"))
        self.stage.allocate()

    def free(self) -> None:
        self.others.tell(Order(op="free"))
        self.stage.free()

    def zero(self) -> None:
        self.sums += 1
        self.others.tell(Order(op="zero"))
        self.stage.zero()

    def gather(self, into: dict[str, Tensor]) -> None:
        """Add the stages' sums to the whole's views."""
        self.others.tell(Order(op="gradient"))
        add_up(into, self.stage.layout.views(self.stage.gradient().cpu()) | self.others.gradient())

    def look(self, step: PackedMicroStep) -> Tensor:
        """Logits [r, vocab] of a micro-step, forward only."""
        self.drain()
        self.others.tell(Order(op="look"), encode(step))
        logits = self.stage.schedule.look(self.stage.tensors(step))
        if logits is not None:
            return logits
        data = self.others.answer(self.others.frames[-1], "look")[1]
        return as_tensor(data, self.stage.model.dtype).view(-1, self.whole.arch.vocab_size)

    def usage(self) -> list[Usage]:
        """Of each stage since last asked."""
        self.others.tell(Order(op="usage"))
        schedule = self.stage.schedule
        own, schedule.usage = schedule.usage, Usage()
        return [own, *self.others.usage()]

    def gradient_buffer(self, endpoint: TransferEndpoint) -> GradientBuffer:
        return StagedGradients(self, endpoint)

    # -- the stream ----------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def feed(self, step: PackedMicroStep, settings: LossSettings, fed: Fed) -> int:
        """See MicroStepStream."""
        if (work := self.work(step, settings, fed)) is not None:
            self.feed_work(step, work, fed)
        return 0

    def work(self, step: PackedMicroStep, settings: LossSettings, fed: Fed) -> Work | None:
        """What goes to the stages; None if nothing has to, and then `fed` has been told."""
        tensors = self.stage.tensors(step)
        reference = self.reference(step, settings)
        if not len(tensors.rows):
            fed(micro_step_loss(torch.zeros(0, self.whole.arch.vocab_size), step, settings, reference).metrics)
            return None
        number, self._number, self.sums = self._number, self._number + 1, self.sums + 1
        tail = as_bytes(reference.to(self.stage.model.dtype)) if reference is not None else b""
        return Work(number, encode(step), settings, tail)

    def feed_work(self, step: PackedMicroStep, work: Work, fed: Fed) -> None:
        """This process does the first stage's share of it."""
        self.is_intact = False
        self.others.feed(work)
        self._waiting.append(_Waiting(work.number, fed))
        dtype, device = self.stage.model.dtype, self.stage.device
        reference = as_tensor(work.reference, dtype).to(device) if work.reference else None
        loss = loss_of(step, work.settings, reference, self._own_results.append)
        self.stage.schedule.forward(work.number, self.stage.tensors(step), loss)
        while self.stage.schedule.in_flight >= self.stage.schedule.room:
            self._finish_oldest()
        self.is_intact = True

    def advance(self) -> None:
        """No more is there for now: have the oldest one's backward passes done."""
        oldest = self.stage.schedule.oldest
        if oldest is not None:
            self.is_intact = False
            self.others.tell(Order(op="backward", number=oldest))
            self._finish_oldest()
            self.is_intact = True

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
        self.others.close()

    def _finish_oldest(self) -> None:
        number, _ = self.stage.schedule.backward()
        waiting = self._waiting.popleft()
        if self._own_results:
            result = self._own_results.popleft()
        else:
            result = result_of(self.others.answer(self.others.frames[-1], "forward")[0], number)
        waiting.fed(result)


class Gathering(Protocol):
    """Where gradient sums are in several places. `sums` changes whenever they do."""

    whole: HostPolicy

    @property
    def sums(self) -> int: ...

    def allocate(self) -> None: ...

    def free(self) -> None: ...

    def zero(self) -> None: ...

    def gather(self, into: dict[str, Tensor]) -> None: ...


class StagedGradients(GradientBuffer):
    """The whole's gradient sum of a cell with stages: gathered when the sum is complete, then read like any other."""

    def __init__(self, stages: Gathering, endpoint: TransferEndpoint) -> None:
        self._stages = stages
        self._gathered = -1
        super().__init__(stages.whole, endpoint)
        stages.allocate()
        stages.zero()

    def attach(self) -> None:
        """Nothing to do here: each stage's backward passes add into its own sum."""

    def is_attached(self) -> bool:
        """Each stage looks for itself when it hands its sum in."""
        return True

    def zero(self) -> None:
        super().zero()
        self._stages.zero()

    def complete(self) -> None:
        if self._gathered != self._stages.sums:
            self.flat.zero_()
            self._stages.gather(self.views)
            self._gathered = self._stages.sums

    def close(self) -> None:
        super().close()
        self._stages.free()

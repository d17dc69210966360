"""Data parallelism inside a cell: more copies of the model, each a pipeline of its own, one gradient sum.

The first replica is the front's own pipeline; the others are processes that only obey. A micro-step goes to whichever
has room, the others before the front's, whose thread computes while it feeds. The sums are added in order of the
replicas when the batch is sealed: `lane` and order of each micro-step say how to repeat that to the last bit.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infra.micro_steps import PackedMicroStep
from infra.transfer import TransferEndpoint
from workers.cell.training.gradients import GradientBuffer
from workers.cell.training.pipeline.chain import Chain, Work, add_up, result_of
from workers.cell.training.pipeline.front import Pipeline, StagedGradients
from workers.cell.training.pipeline.orders import Order
from workers.cell.training.pipeline.schedule import Usage
from workers.cell.training.stream import Fed, ReferenceLogprobs
from workers.cell.training.weights_state import HeldWeights
from workflows.messages.loss import LossSettings


@dataclass(frozen=True)
class _Waiting:
    number: int
    fed: Fed


class Replica:
    """A copy of the model in processes of its own, all its stages."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.room = len(chain.frames) + 1
        """One more than it can work on: the next is there when it has finished one."""
        self._waiting: deque[_Waiting] = deque()
        self._heard = 2 if len(chain.frames) == 1 else 1

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def feed(self, work: Work, fed: Fed) -> None:
        self._waiting.append(_Waiting(work.number, fed))
        self.chain.feed(work)

    def hear(self) -> None:
        """Take note of what has been finished."""
        while self._waiting and self.chain.frames[0].waiting >= self._heard:
            self._finish_oldest()

    def hurry(self) -> None:
        """No more is there for now: have the oldest one's backward passes done; `finish` waits for them."""
        if self._waiting:
            self.chain.tell(Order(op="backward", number=self._waiting[0].number))

    def finish(self) -> None:
        if self._waiting:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        first, last = self.chain.frames[0], self.chain.frames[-1]
        result = self.chain.answer(last, "forward")[0]
        number = self.chain.answer(first, "backward")[0].number
        self._waiting.popleft().fed(result_of(result, number))


class Replicated:
    """A MicroStepStream. `front` computes in this process, `replicas` elsewhere."""

    def __init__(self, front: Pipeline, replicas: Sequence[Replica]) -> None:
        self.front, self.replicas = front, tuple(replicas)
        self.whole = front.whole
        self._held: HeldWeights | None = None

    def use_reference(self, reference: ReferenceLogprobs) -> None:
        self.front.use_reference(reference)

    @property
    def sums(self) -> int:
        return self.front.sums

    def hold(self, weights: HeldWeights) -> None:
        if self._held == weights:
            return
        named = self.front.named()
        for replica in self.replicas:
            replica.chain.send_weights(named)
        self.front.hold(weights)
        for replica in self.replicas:
            replica.chain.loaded()
        self._held = weights

    def gradient_buffer(self, endpoint: TransferEndpoint) -> GradientBuffer:
        return StagedGradients(self, endpoint)

    def allocate(self) -> None:
        self._tell(Order(op="allocate"))
        self.front.allocate()

    def free(self) -> None:
        self._tell(Order(op="free"))
        self.front.free()

    def zero(self) -> None:
        self._tell(Order(op="zero"))
        self.front.zero()

    def gather(self, into: dict[str, Tensor]) -> None:
        """Add every replica's whole sum, one after the other."""
        self._tell(Order(op="gradient"))
        self.front.gather(into)
        for replica in self.replicas:
            found = {name: torch.zeros_like(view) for name, view in into.items()}
            add_up(found, replica.chain.gradient())
            for name, view in into.items():
                view += found[name]

    def usage(self) -> list[Usage]:
        self._tell(Order(op="usage"))
        own = self.front.usage()
        return own + [one for replica in self.replicas for one in replica.chain.usage()]

    def look(self, step: PackedMicroStep) -> Tensor:
        self.drain()
        return self.front.look(step)

    @property
    def is_intact(self) -> bool:
        return self.front.is_intact

    @property
    def in_flight(self) -> int:
        return self.front.in_flight + sum(replica.in_flight for replica in self.replicas)

    def feed(self, step: PackedMicroStep, settings: LossSettings, fed: Fed) -> int:
        """To the least busy of the other replicas that has room, else through the front's own pipeline."""
        for replica in self.replicas:
            replica.hear()
        work = self.front.work(step, settings, fed)
        if work is None:
            return 0
        lane = min(range(len(self.replicas)), key=lambda number: self.replicas[number].in_flight)
        if self.replicas[lane].in_flight < self.replicas[lane].room:
            self.replicas[lane].feed(work, fed)
            return lane + 1
        self.front.feed_work(step, work, fed)
        return 0

    def advance(self) -> None:
        """Finish the oldest of every replica, all at work at the same time."""
        for replica in self.replicas:
            replica.hurry()
        self.front.advance()
        for replica in self.replicas:
            replica.finish()

    def drain(self) -> None:
        while self.in_flight:
            self.advance()

    def break_off(self) -> None:
        self.front.break_off()

    def close(self) -> None:
        self.front.close()
        for replica in self.replicas:
            replica.chain.close()

    def _tell(self, order: Order) -> None:
        for replica in self.replicas:
            replica.chain.tell(order)

"""One stage's part of an open-ended 1F1B pipeline.

A stage may hold as many micro-steps as there are stages from it to the end; when it holds that many it does the oldest
one's backward pass before it takes another. How many will come is nobody's business: when no more are there, the first
stage asks for the backward passes that are still owed, and all stages then stand at the same point with nothing in
between. Megatron's own forward and backward steps do the work; its schedules fix the count in advance.

Invariant: every stage does forward and backward passes in the order in which micro-steps were fed, so that a gradient
is summed in that order whatever the number of stages.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.core.pipeline_parallel.schedules import backward_step, forward_step
from torch import Tensor

from workers.cell.training.model import PolicyModel
from workers.cell.training.pipeline.link import Link
from workers.cell.training.pipeline.pulse import Progress
from workers.cell.training.step_tensors import StepTensors

LossOf = Callable[[Tensor], tuple[Tensor, bool]]
"""Logits [r, vocab] of the targets -> loss [] with gradient, and whether it may be trained on."""


@dataclass
class Usage:
    """Seconds a stage computed, and waited for its neighbours while it had something in hand or coming."""

    busy_seconds: float = 0.0
    waiting_seconds: float = 0.0
    passes: deque[tuple[str, float, float]] = field(default_factory=lambda: deque(maxlen=1024))
    """The last ones in order: ``F3``, ``B1``, ..., and when each began and ended on the clock of this process."""


@dataclass
class _Flight:
    number: int
    tokens: int
    inputs: Tensor | None
    outputs: Tensor
    is_refused: bool


class StageSchedule:
    """Not thread-safe. `stage` of `stages`; the first has no `inputs`, the last computes the loss.

    `progress` shows other threads when it waits for a neighbour.
    """

    def __init__(
        self, model: PolicyModel, link: Link, stage: int, stages: int, progress: Progress | None = None
    ) -> None:
        self._model, self._link = model, link
        self.progress = progress or Progress()
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        self.room = stages - stage
        self.usage = Usage()
        self._flights: deque[_Flight] = deque()

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    def oldest(self) -> int | None:
        return self._flights[0].number if self._flights else None

    def forward(self, number: int, step: StepTensors, loss_of: LossOf) -> None:
        """Micro-step `number` through this stage and on to the next. `loss_of` is called on the last stage only."""
        inputs = self._inputs(step)
        started = time.perf_counter()
        verdicts: list[bool] = []

        def compute(_: object, model: PolicyModel):
            return model.stage_output(step), per_token(loss_of)

        def per_token(loss_of: LossOf):
            def loss(logits: Tensor):
                value, is_good = loss_of(logits)
                verdicts.append(is_good)
                return value, torch.zeros((), dtype=torch.int), {}

            return loss

        config: Any = self._model.config
        outputs: Any = forward_step(
            compute, None, self._model, 1, inputs, [], config, cp_group_size=1, is_last_stage=self.is_last
        )[0]
        self._did(f"F{number}", started)  # before sending, which is no work
        if not self.is_last:
            with self.progress.waiting():
                self._link.send_forward(outputs)
        self._flights.append(_Flight(number, step.tokens, inputs, outputs, self.is_last and not verdicts[0]))

    def backward(self) -> tuple[int, bool]:
        """The oldest micro-step's backward pass: its number, and whether its gradient is in the sum (not: refused)."""
        flight = self._flights.popleft()
        started, gradient = time.perf_counter(), None
        if self.is_last:
            is_good = not flight.is_refused
        else:
            with self.progress.waiting():
                gradient = self._link.receive_backward(flight.tokens)
            is_good = gradient is not None
            started = self._waited(started)
        passed_on: Any = None
        if is_good:
            config = self._model.config
            passed_on = backward_step(flight.inputs, flight.outputs, gradient, self._model.model_type, config)
        self._did(f"B{flight.number}", started)
        if not self.is_first:
            with self.progress.waiting():
                self._link.send_backward(passed_on)
        return flight.number, is_good

    def settle(self) -> None:
        """Let go of what has been sent, if nothing is in flight: only then are the neighbours sure to have it."""
        if not self._flights:
            with self.progress.waiting():
                self._link.settle()

    @torch.no_grad()
    def look(self, step: StepTensors) -> Tensor | None:
        """Forward only, when nothing is in flight: logits [r, vocab] on the last stage, else None."""
        inputs = self._inputs(step)
        self._model.set_input_tensor(inputs)  # pyright: ignore[reportArgumentType]
        outputs = self._model.stage_output(step)
        if self.is_last:
            return outputs
        with self.progress.waiting():
            self._link.send_forward(outputs)
        return None

    def _inputs(self, step: StepTensors) -> Tensor | None:
        if self.is_first:
            return None
        started = time.perf_counter()
        with self.progress.waiting():
            hidden = self._link.receive_forward(step.tokens)
        self._waited(started)
        return hidden

    def _waited(self, started: float) -> float:
        now = time.perf_counter()
        self.usage.waiting_seconds += now - started
        return now

    def _did(self, what: str, started: float) -> None:
        now = time.perf_counter()
        self.usage.busy_seconds += now - started
        self.usage.passes.append((what, started, now))

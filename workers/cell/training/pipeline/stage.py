"""What one stage holds and does: its part of the model, its gradient sum, its passes; the loop that obeys orders."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from infra.micro_steps import PackedMicroStep, decode
from infra.weights.layout import FlatLayout
from workers.cell.training.loss import micro_step_loss
from workers.cell.training.model import PolicyModel
from workers.cell.training.pipeline.link import Link
from workers.cell.training.pipeline.orders import Frames, Order, Report, as_bytes, as_tensor
from workers.cell.training.pipeline.pulse import Progress
from workers.cell.training.pipeline.schedule import StageSchedule
from workers.cell.training.step_tensors import StepTensors
from workflows.messages.errors import GyreError, Permanent
from workflows.messages.loss import LossSettings
from workflows.messages.training import TokenMetrics


class Stage:
    """`stage` of `stages`. Names are the whole model's; a flat tensor is in the layout of the stage's sorted names."""

    def __init__(
        self, model: PolicyModel, link: Link, stage: int, stages: int, progress: Progress | None = None
    ) -> None:
        self.model = model
        self.schedule = StageSchedule(model, link, stage, stages, progress)
        self._named = model.named_in_whole()
        self.layout = FlatLayout.of({name: tuple(parameter.shape) for name, parameter in self._named.items()})
        self._first_parameter = next(iter(self._named.values()))
        self._gradient: Tensor | None = None
        self._views: dict[str, Tensor] = {}

    @property
    def device(self) -> torch.device:
        return self._first_parameter.device

    def tensors(self, step: PackedMicroStep) -> StepTensors:
        return StepTensors.of(step, self.model.arch.vocab_size, self.device)

    @torch.no_grad()
    def load(self, named: Mapping[str, Tensor]) -> None:
        """Copy the stage's weights out of a set that holds them."""
        for name, parameter in self._named.items():
            parameter.copy_(named[name])

    def load_flat(self, flat: Tensor) -> None:
        self.load(self.layout.views(flat))

    def allocate(self) -> None:
        """Have a gradient sum, zero at first; backward passes add into it."""
        if self._gradient is None:
            like = self._first_parameter
            self._gradient = torch.zeros(self.layout.elements, dtype=like.dtype, device=like.device)
            self._views = self.layout.views(self._gradient)
            for name, parameter in self._named.items():
                parameter.grad = self._views[name]

    def free(self) -> None:
        self.schedule.settle()
        self._gradient, self._views = None, {}
        for parameter in self._named.values():
            parameter.grad = None

    def zero(self) -> None:
        if self._gradient is not None:
            self._gradient.zero_()

    def gradient(self) -> Tensor:
        """The flat sum. Raises Permanent if something was added elsewhere."""
        self.schedule.settle()
        for name, parameter in self._named.items():
            if parameter.grad is None or parameter.grad.data_ptr() != self._views[name].data_ptr():
                raise Permanent(f"the gradient of {name} was added outside the stage's sum")
        return self._gradient if self._gradient is not None else torch.empty(0)


def loss_of(
    step: PackedMicroStep,
    settings: LossSettings,
    reference: Tensor | None,
    tell: Callable[[TokenMetrics | GyreError], None],
) -> Callable[[Tensor], tuple[Tensor, bool]]:
    """The last stage's loss function; `tell` hears what is reported of the micro-step, or why it is refused."""

    def compute(logits: Tensor) -> tuple[Tensor, bool]:
        try:
            loss = micro_step_loss(logits, step, settings, reference)
        except GyreError as error:
            tell(error)
            return logits.sum(), False
        if loss.is_finite:
            tell(loss.metrics)
        else:
            header = step.header
            tell(Permanent(f"micro-step {header.index} of {header.batch} has loss {loss.total.item()}"))
        return loss.total, loss.is_finite

    return compute


class StageServer:
    """Obeys the first stage until it says `end` or is gone."""

    def __init__(self, stage: Stage, frames: Frames) -> None:
        self._stage, self._frames = stage, frames

    def serve(self) -> None:
        """Returns at `end`; raises EOFError when the first stage is gone, and whatever a pass raises."""
        while True:
            order, data = self._frames.receive()
            if not isinstance(order, Order):
                raise TypeError(f"{type(order).__name__} is no order")
            if order.op == "end":
                return
            with self._stage.schedule.progress.computing():
                self.obey(order, data)

    def obey(self, order: Order, data: bytes) -> None:
        """Do what one order says."""
        stage = self._stage
        match order.op:
            case "forward":
                self._forward(order, data)
            case "backward":
                while stage.schedule.oldest is not None and stage.schedule.oldest <= order.number:
                    self._backward()
            case "look":
                logits = stage.schedule.look(stage.tensors(decode(data)))
                if logits is not None:
                    self._frames.send(Report(op="look"), as_bytes(logits))
            case "weights":
                stage.load_flat(as_tensor(data, stage.model.dtype))
                self._frames.send(Report(op="weights"))
            case "allocate":
                stage.allocate()
            case "free":
                stage.free()
            case "zero":
                stage.zero()
            case "gradient":
                self._frames.send(Report(op="gradient"), as_bytes(stage.gradient()))
            case "usage":
                self._frames.send(usage_of(stage.schedule))
            case "beat" | "end":
                """Handled before."""

    def _forward(self, order: Order, data: bytes) -> None:
        stage = self._stage
        blob = data[: len(data) - order.reference]
        step = decode(blob)
        reference = None
        if order.reference:
            reference = as_tensor(data[len(blob) :], stage.model.dtype).to(stage.device)

        def tell(result: TokenMetrics | GyreError) -> None:
            if isinstance(result, TokenMetrics):
                self._frames.send(Report(op="forward", number=order.number, metrics=result))
            else:
                refused = (type(result).__name__, str(result))
                self._frames.send(Report(op="forward", number=order.number, refused=refused))

        loss = loss_of(step, order.loss or LossSettings(), reference, tell)
        stage.schedule.forward(order.number, stage.tensors(step), loss)
        if stage.schedule.in_flight >= stage.schedule.room:
            self._backward()

    def _backward(self) -> None:
        number, _ = self._stage.schedule.backward()
        if self._stage.schedule.is_first:  # of a replica: the micro-step is through, the front has to hear
            self._frames.send(Report(op="backward", number=number))


def usage_of(schedule: StageSchedule) -> Report:
    """What the stage has done since it was last asked."""
    usage, schedule.usage = schedule.usage, type(schedule.usage)()
    return Report(
        op="usage",
        busy_seconds=usage.busy_seconds,
        waiting_seconds=usage.waiting_seconds,
        passes=tuple(usage.passes),
    )

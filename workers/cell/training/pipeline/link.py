"""What neighbouring stages tell each other: hidden states down the pipeline, their gradients back up.

Sends never wait for the receiver, or two neighbours that send to each other would stand still; receives wait. Before
each gradient goes a verdict: whether there is one, for a micro-step with a loss that is not finite is refused whole.
"""

from collections import deque
from typing import Any, Protocol

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from torch import Tensor

from workers.cell.training.model import PolicyModel


class Link(Protocol):
    """One stage's two neighbours. Hidden states are [s, 1, hidden] in the model's dtype."""

    def send_forward(self, hidden: Tensor) -> None: ...

    def receive_forward(self, tokens: int) -> Tensor:
        """A leaf that requires a gradient."""
        ...

    def send_backward(self, gradient: Tensor | None) -> None:
        """None: the micro-step is refused and there is no gradient."""
        ...

    def receive_backward(self, tokens: int) -> Tensor | None: ...

    def settle(self) -> None:
        """With nothing in flight: wait until everything sent has left, and let go of it."""
        ...


class Alone:
    """The Link of an only stage."""

    def send_forward(self, hidden: Tensor) -> None:
        raise RuntimeError("an only stage has no neighbours")

    def receive_forward(self, tokens: int) -> Tensor:
        raise RuntimeError("an only stage has no neighbours")

    def send_backward(self, gradient: Tensor | None) -> None:
        raise RuntimeError("an only stage has no neighbours")

    def receive_backward(self, tokens: int) -> Tensor | None:
        raise RuntimeError("an only stage has no neighbours")

    def settle(self) -> None:
        """Nothing is ever sent."""


class MegatronLink:
    """Over Megatron's point-to-point communicators, one for each direction.

    `_communicate(wait_on_reqs=False)` is private to Megatron-core 0.16; nothing else here knows of it. What was sent is
    kept, without the graph behind it, until it has left: `settle`, or as many sends later as a full pipeline makes.
    """

    def __init__(self, model: PolicyModel, forward: dist.ProcessGroup, backward: dist.ProcessGroup) -> None:
        config: Any = model.config
        self._hidden = config.hidden_size
        self._dtype, self._device = config.pipeline_dtype, next(model.parameters()).device
        self._down, self._up = P2PCommunicator(forward, config), P2PCommunicator(backward, config)
        self._leaving: deque[tuple[Tensor, list[Any]]] = deque()
        self._at_most = 3 * forward.size()  # hidden states, verdict and gradient of each micro-step in flight

    def send_forward(self, hidden: Tensor) -> None:
        self._send(self._down, hidden, tensor_send_next=hidden)

    def receive_forward(self, tokens: int) -> Tensor:
        return self._down.recv_forward((tokens, 1, self._hidden), False)  # pyright: ignore[reportReturnType]

    def send_backward(self, gradient: Tensor | None) -> None:
        verdict = torch.full((1,), float(gradient is not None), dtype=self._dtype, device=self._device)
        self._send(self._up, verdict, tensor_send_prev=verdict)
        if gradient is not None:
            self._send(self._up, gradient, tensor_send_prev=gradient)

    def receive_backward(self, tokens: int) -> Tensor | None:
        if not bool(self._up.recv_backward((1,), False).item()):  # pyright: ignore[reportAttributeAccessIssue]
            return None
        return self._up.recv_backward((tokens, 1, self._hidden), False)  # pyright: ignore[reportReturnType]

    def _send(self, communicator: P2PCommunicator, kept: Tensor, **what: Tensor) -> None:
        sides: dict[str, Any] = {"tensor_send_next": None, "tensor_send_prev": None, "tensor_shape": None} | what
        found: Any = communicator._communicate(**sides, recv_prev=False, recv_next=False, wait_on_reqs=False)
        self._leaving.append((kept.detach(), list(found[2].values())))
        self._keep(self._at_most)

    def settle(self) -> None:
        self._keep(0)

    def _keep(self, at_most: int) -> None:
        while len(self._leaving) > at_most:
            for request in self._leaving.popleft()[1]:
                request.wait()

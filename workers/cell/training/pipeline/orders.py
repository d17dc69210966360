"""What the first stage tells the others beside hidden states: passes to do, weights to hold, gradients to hand in.

One connection per stage, a frame of JSON and, where an order brings or answers data, one frame of bytes. The first
stage never waits for an order to be read: each side has a thread that only reads.
"""

import logging
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from workflows.messages.base import Message
from workflows.messages.loss import LossSettings
from workflows.messages.training import TokenMetrics

log = logging.getLogger(__name__)

Op = Literal["forward", "backward", "look", "weights", "allocate", "free", "zero", "gradient", "usage", "end"]


class Order(Message):
    """`number`: the micro-step of a forward pass, or the last one whose backward pass is due.

    Data: `forward` and `look` bring the micro-step's blob (and for the last stage the reference policy's log-probs
    behind it, `reference` bytes), `weights` the stage's weights as one flat tensor.
    """

    op: Op
    number: int = 0
    loss: LossSettings | None = None
    reference: int = Field(default=0, ge=0, description="bytes of reference log-probs at the end of the data")


class Report(Message):
    """A stage's answer. `refused`: the exception's class and text; data: `gradient` and `look` bring a flat tensor."""

    op: Op
    number: int = 0
    metrics: TokenMetrics | None = None
    refused: tuple[str, str] | None = None
    busy_seconds: float = 0.0
    waiting_seconds: float = 0.0
    passes: tuple[tuple[str, float, float], ...] = ()


class Frames:
    """One side of a connection. `lost` is called, in the reading thread, when the other side is gone."""

    def __init__(self, connection: Connection, kind: type[Message], lost: Callable[[], None]) -> None:
        self._connection, self._kind, self._lost = connection, kind, lost
        self._received: SimpleQueue[tuple[Message, bytes] | None] = SimpleQueue()
        self._closing = False
        threading.Thread(target=self._read, name="frames", daemon=True).start()

    def send(self, message: Message, data: bytes = b"") -> None:
        """Raises OSError if the other side is gone."""
        self._connection.send_bytes(message.model_dump_json().encode())
        self._connection.send_bytes(data)

    def receive(self, within_seconds: float | None = None) -> tuple[Message, bytes]:
        """The next message; None waits as long as it takes.

        Raises EOFError if the other side is gone. One that says nothing within that time counts as gone: `lost` is
        called, here.
        """
        try:
            received = self._received.get(timeout=within_seconds)
        except Empty:
            log.critical("the other side of the connection has said nothing for %s s", within_seconds)
            self._received.put(None)
            self._lost()
            raise EOFError("the other side of the connection does not answer") from None
        if received is None:
            self._received.put(None)
            raise EOFError("the other side of the connection is gone")
        return received

    @property
    def waiting(self) -> int:
        """Messages that `receive` would return at once."""
        return self._received.qsize()

    def close(self) -> None:
        """The end is wanted: it is no loss."""
        self._closing = True
        self._connection.close()

    def _read(self) -> None:
        try:
            while True:
                message = self._kind.model_validate_json(self._connection.recv_bytes())
                self._received.put((message, self._connection.recv_bytes()))
        except Exception as error:  # a frame that cannot be understood ends the connection as surely as a closed one
            if not self._closing and not isinstance(error, EOFError | OSError):
                log.critical("a frame cannot be read", exc_info=error)
            self._received.put(None)
            if not self._closing:
                self._lost()


def as_bytes(flat: Tensor) -> bytes:
    """A contiguous tensor's memory."""
    return flat.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def as_tensor(data: bytes, dtype: torch.dtype) -> Tensor:
    """1-D, in memory of its own."""
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)

"""What the first stage tells the others beside hidden states: passes to do, weights to hold, gradients to hand in.

One connection per stage; a message is a frame of JSON, then its data in pieces, of which the last is shorter than
PIECE_BYTES. The first stage never waits for an order to be done: each side has a thread that only reads. Another one
looks after the other side (see `pulse`): it sends a beat, and counts how long nothing has been heard or taken.
"""

import logging
import select
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from workers.cell.training.pipeline.pulse import BEAT_SECONDS, Stillness
from workflows.messages.base import Message
from workflows.messages.loss import LossSettings
from workflows.messages.training import TokenMetrics

log = logging.getLogger(__name__)

PIECE_BYTES = 16 << 20

Op = Literal["forward", "backward", "look", "weights", "allocate", "free", "zero", "gradient", "usage", "beat", "end"]


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
    """A stage's answer. `refused`: the exception's class and text; data: `gradient` and `look` bring a flat tensor.

    A `beat` answers nothing: it says what the stage is at, and that its process lives.
    """

    op: Op
    number: int = 0
    metrics: TokenMetrics | None = None
    refused: tuple[str, str] | None = None
    busy_seconds: float = 0.0
    waiting_seconds: float = 0.0
    passes: tuple[tuple[str, float, float], ...] = ()
    is_computing: bool = False
    moved: int = 0


class Frames:
    """One side of a connection. `lost` is called, in a thread of this object, when the other side is gone.

    `beat` makes the sign of life that is sent every `beat_seconds`. Without `quiet_looks` the other side may be silent
    as long as it likes.
    """

    def __init__(
        self,
        connection: Connection,
        kind: type[Message],
        lost: Callable[[], None],
        *,
        beat: Callable[[], Message] | None = None,
        quiet_looks: int | None = None,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self._connection, self._kind, self._lost = connection, kind, lost
        self._beat, self._quiet_looks, self._beat_seconds = beat, quiet_looks, beat_seconds
        self._received: SimpleQueue[tuple[Message, bytes] | None] = SimpleQueue()
        self.last_beat: Any = None
        """Of the other side; None before its first."""
        self._heard = self._taken = 0
        self._silence, self._standstill = Stillness(), Stillness()
        self._sending = threading.Lock()
        self._closing = threading.Event()
        threading.Thread(target=self._read, name="frames", daemon=True).start()
        if beat is not None or quiet_looks is not None:
            threading.Thread(target=self._look_after, name="pulse", daemon=True).start()

    def send(self, message: Message, data: bytes = b"") -> None:
        """Raises OSError if the other side is gone. One that does not take it is lost like one that is silent."""
        with self._sending:
            self._put(message, data)

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
        self._closing.set()
        self._connection.close()

    def look(self) -> bool:
        """One look at the other side, and a beat for it; False when there is nothing to look after any more."""
        if self._closing.is_set():
            return False
        silent = self._silence.looks(self._heard)
        stuck = self._standstill.looks(self._taken if self._sending.locked() else None)
        if self._quiet_looks is not None and max(silent, stuck) >= self._quiet_looks:
            seconds = self._quiet_looks * self._beat_seconds
            log.critical(
                "the other side has %s for %g s", "said nothing" if silent > stuck else "read nothing", seconds
            )
            self._received.put(None)
            self._lost()
            return False
        return self._send_beat()

    def _put(self, message: Message, data: bytes) -> None:
        self._connection.send_bytes(message.model_dump_json().encode())
        whole = memoryview(data)
        for start in range(0, len(whole) + 1, PIECE_BYTES):
            self._connection.send_bytes(whole[start : start + PIECE_BYTES])
            self._taken += 1

    def _send_beat(self) -> bool:
        """Only if it can leave at once: a message that is being sent is a sign of life as well."""
        if self._beat is None or not self._sending.acquire(blocking=False):
            return True
        try:
            poll = select.poll()
            poll.register(self._connection.fileno(), select.POLLOUT)
            if poll.poll(0):
                self._put(self._beat(), b"")
        except OSError:
            return False  # closed: the thread that reads says what of it
        finally:
            self._sending.release()
        return True

    def _look_after(self) -> None:
        while not self._closing.wait(self._beat_seconds) and self.look():
            pass

    def _read(self) -> None:
        try:
            while True:
                message = self._kind.model_validate_json(self._next())
                pieces = [self._next()]
                while len(pieces[-1]) == PIECE_BYTES:
                    pieces.append(self._next())
                if getattr(message, "op", "") == "beat":
                    self.last_beat = message
                else:
                    self._received.put((message, pieces[0] if len(pieces) == 1 else b"".join(pieces)))
        except Exception as error:  # a frame that cannot be understood ends the connection as surely as a closed one
            is_closing = self._closing.is_set()
            if not is_closing and not isinstance(error, EOFError | OSError):
                log.critical("a frame cannot be read", exc_info=error)
            self._received.put(None)
            if not is_closing:
                self._lost()

    def _next(self) -> bytes:
        piece = self._connection.recv_bytes()
        self._heard += 1
        return piece


def as_bytes(flat: Tensor) -> bytes:
    """A contiguous tensor's memory."""
    return flat.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def as_tensor(data: bytes, dtype: torch.dtype) -> Tensor:
    """1-D, in memory of its own."""
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)

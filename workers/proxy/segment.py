"""One stretch of a request on one engine."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False)
class Segment:
    """`rid` = the call's 32 hex digits and 4 of the segment: fixed length, so no rid is a prefix of another.

    Whoever wants the request elsewhere calls `cut`: the reader then has it aborted and keeps what still arrives. `lose`
    says that the engine is gone. `listener` is called, once each, when either happens.
    """

    call: str
    number: int
    execution: str
    engine: str
    cell: int
    boot_epoch: int
    version: int
    checksum: str
    reserved_tokens: int
    started_at: float = field(default_factory=time.time)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_cut: bool = False
    is_lost: bool = False
    listener: Callable[[], None] | None = None
    heard: bool = False  # the engine has said something, so it knows the request
    stopped: bool = False  # the engine is known to have ended it
    aborted: bool = False  # the engine has been asked to end it
    kv_waited: bool = False
    moved: bool = False  # it was cut, and its request goes on elsewhere
    cached_tokens: int = 0
    mixed_kv_tokens: int = 0  # last output tokens that were sampled over KV of older weights
    first_token_at: float | None = None
    last_token_at: float | None = None

    @property
    def rid(self) -> str:
        return f"{self.call}{self.number:04x}"

    def spoke(self) -> None:
        """It has just said something: what a harness hears, and how long it hears nothing, goes by these moments."""
        self.last_token_at = time.time()
        if self.first_token_at is None:
            self.first_token_at = self.last_token_at

    def cut(self) -> None:
        """The request is to go on elsewhere."""
        if not self.is_cut:
            self.is_cut = True
            self._tell()

    def lose(self) -> None:
        """The engine is gone."""
        if not self.is_lost:
            self.is_lost = True
            self._tell()

    def _tell(self) -> None:
        if self.listener is not None:
            self.listener()

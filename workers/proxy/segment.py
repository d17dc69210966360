"""One stretch of a request on one engine."""

import asyncio
import time
from dataclasses import dataclass, field


@dataclass(eq=False)
class Segment:
    """`rid` = the call's 32 hex digits and 4 of the segment: fixed length, so no rid is a prefix of another.

    `cut` is set by whoever wants the request elsewhere; the reader then aborts it and keeps what still arrives.
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
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: bool = False  # the engine is known to have ended it
    kv_waited: bool = False
    moved: bool = False  # it was cut, and its request goes on elsewhere

    @property
    def rid(self) -> str:
        return f"{self.call}{self.number:04x}"

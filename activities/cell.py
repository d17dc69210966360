"""What the steps of one cell work on: its engine, its KV linker, its training actor, its stream, and its fence.

`Cell` is built by the cell worker once per boot; everything in it lives and dies with that boot.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sqlalchemy import Engine

from infra.actor import ActorClient
from infra.engine import EngineClient
from infra.engine.linker_client import LinkerClient
from workflows.messages.errors import Fenced
from workflows.messages.scheduling import Weights


class Stream(Protocol):
    """The cell's ear on a batch's stream queue: micro-steps are claimed only while it is open."""

    @property
    def batch(self) -> str | None: ...

    async def open(self, batch: str, depth: int) -> None:
        """Serve the stream of `batch`, `depth` micro-steps at once; another batch's is closed first."""
        ...

    async def close(self) -> None:
        """Stop claiming and wait, bounded, until what was claimed is done."""
        ...


class WeightsProof(Protocol):
    """How an engine shows which weights it holds."""

    def expect(self, folder: Path, weights: Weights) -> None:
        """Work out beforehand what `verify` will compare with: it may be asked for while an engine is still loading.

        Raises VersionMismatch unless `folder` holds what `weights` promises. Blocks while hashing.
        """
        ...

    def verify(self, folder: Path, weights: Weights, reported_total: str, reported: dict[str, str]) -> None:
        """Raises VersionMismatch unless what the engine reported is what `folder` holds and `weights` promises."""
        ...


@dataclass
class Fence:
    """Refuses a step of an older transition: its lease is lower than the highest one seen."""

    highest: int = 0

    def check(self, lease: int) -> None:
        if lease < self.highest:
            raise Fenced(f"lease {lease} is over; {self.highest} holds the cell")
        self.highest = lease


@dataclass
class Cell:
    """One boot of one cell. `published` is the folder on memory-backed storage the engine loads weights from.

    `paused`: the engine was told to stand still, requests and all, and not yet to go on. `over`: this boot is to end.
    """

    run: str
    index: int
    boot_epoch: int
    engine: EngineClient
    linker: LinkerClient | None
    actor: ActorClient
    stream: Stream
    proof: WeightsProof
    records: Engine
    published: Path
    checkpoints: Path
    base_model: Path
    peer_actor: Callable[[int], ActorClient]
    peer_linker: Callable[[int], LinkerClient]
    fence: Fence = field(default_factory=Fence)
    paused: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)

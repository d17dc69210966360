"""The KV linker's control messages: what is retained for whom, where its pages lie, what arrived.

A page is `page_tokens` consecutive tokens of one prefix, all layers; its key is a hash chain over the token ids, seeded
by the cache key (run, weight version, weights checksum), so pages of other weights can never be confused.
"""

from pydantic import Field

from workflows.messages.base import Message
from workflows.messages.transfer import BufferManifest


class Retain(Message):
    """Pin the pages of these sessions' latest prefixes, those to come included, until released.

    `sessions` None means every session the engine has seen. `lease` fences: an older one is refused. Not acknowledged
    within `hold_seconds`, the pins end by themselves.
    """

    lease: int = Field(ge=0)
    sessions: tuple[str, ...] | None
    hold_seconds: float = Field(default=60.0, gt=0, le=3600)


class Retained(Message):
    """What the lease pins now. `missing` sessions have nothing to hand over."""

    lease: int
    pages: int
    bytes: int
    missing: tuple[str, ...] = ()


class LeaseRequest(Message):
    """`abandon`, for a release only: the hand-off was given up, end the lease although nobody acknowledged it."""

    lease: int = Field(ge=0)
    abandon: bool = False


class LeaseEnded(Message):
    """`released` is True for the one call that ended the lease; a repetition changes nothing and says False."""

    lease: int
    released: bool


class KvManifest(Message):
    """Pages under a lease (entry names are page keys) and which of them, in order, make each session's prefixes."""

    lease: int
    geometry: str = Field(description="layers, page and head sizes, dtype: equal on both sides or the pull is refused")
    page_tokens: int = Field(ge=1)
    chains: dict[str, tuple[tuple[str, ...], ...]]
    pages: BufferManifest


class Pull(Message):
    """Read the manifest's pages into the own pool, for these sessions only (None: all)."""

    manifest: KvManifest
    sessions: tuple[str, ...] | None = None
    timeout_seconds: float = Field(default=20.0, gt=0, le=600)


class Pulled(Message):
    """`arrived` sessions have their whole latest prefix in the pool; `pages`, `bytes` crossed the wire, `present` were
    there already; `tokens` is the length of all arrived prefixes together."""

    arrived: tuple[str, ...]
    pages: int
    present: int
    tokens: int
    bytes: int


class LinkerStats(Message):
    """Counters since start (tokens) and what is held now (pages, leases, bytes)."""

    page_tokens: int
    pool_pages: int
    used_pages: int
    pinned_pages: int
    leases: int
    sessions: int
    used_bytes: int
    offloaded_tokens: int
    loaded_tokens: int
    pulled_tokens: int
    refused_pages: int
    expired_leases: int
    quarantined_bytes: int

"""Stores with pages of 64 bytes and 4 tokens whose bytes follow from their key, and chains for sessions."""

import zlib
from collections.abc import Callable

import torch

from infra.transfer import TransferEndpoint
from workers.cell.rollout.linker.store import KvStore

PAGE_BYTES = 64
PAGE_TOKENS = 4


def make_store(
    endpoint: TransferEndpoint,
    *,
    pages: int = 64,
    page_bytes: int = PAGE_BYTES,
    geometry: str = "test",
    boot_epoch: int = 1,
    clock: Callable[[], float] | None = None,
) -> KvStore:
    kwargs = {} if clock is None else {"clock": clock}
    return KvStore(
        pages=pages,
        page_bytes=page_bytes,
        page_tokens=PAGE_TOKENS,
        geometry=geometry,
        endpoint=endpoint,
        boot_epoch=boot_epoch,
        max_hold_seconds=60,
        **kwargs,
    )


def chain(name: str, length: int, *, shared: int = 2) -> list[str]:
    """Keys of a prefix whose first `shared` pages all sessions have in common."""
    return [f"shared-{i}" if i < shared else f"{name}-{i}" for i in range(length)]


def pages(keys: list[str], page_bytes: int = PAGE_BYTES) -> torch.Tensor:
    """What these pages hold, uint8 [n, page_bytes]."""
    seeds = torch.tensor([zlib.crc32(key.encode()) for key in keys], dtype=torch.int64).unsqueeze(1)
    return ((seeds + torch.arange(page_bytes)) % 251).to(torch.uint8)


def insert(store: KvStore, session: str, keys: list[str], page_bytes: int = PAGE_BYTES) -> bool:
    """What the engine does at an insert: name the chain, then offload what is new."""
    store.note_chain(session, keys)
    fresh = keys[store.prefix(keys) :]
    return store.put(fresh, pages(fresh, page_bytes)) if fresh else True

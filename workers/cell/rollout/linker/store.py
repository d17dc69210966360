"""KV pages of one engine and their hand-off: the pool, who stands on it, and the reads from other engines' pools.

Invariants: what a lease covers is pinned from `retain` until the lease ends, pages that come later included; a pull
lands in memory of its own first, so a late write can never reach a page in use; only pages that verify are kept.
"""

import threading
import time
from collections.abc import Callable, Sequence

import torch

from infra.transfer import TransferEndpoint
from workers.cell.rollout.linker.pool import PagePool
from workers.cell.rollout.linker.retention import Chain, LeaseDesk, Sessions
from workflows.messages.errors import InvalidInput, StillHeld
from workflows.messages.kv import KvManifest, LeaseEnded, LinkerStats, Pull, Pulled, Retain, Retained
from workflows.messages.transfer import BufferEntry, BufferManifest

LANDING_BYTES = 32 << 20


class KvStore:
    """Thread-safe. `geometry` describes a page's layout; only stores with the same one exchange pages."""

    def __init__(
        self,
        *,
        pages: int,
        page_bytes: int,
        page_tokens: int,
        geometry: str,
        endpoint: TransferEndpoint,
        boot_epoch: int,
        max_hold_seconds: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.page_tokens, self.geometry, self.boot_epoch = page_tokens, geometry, boot_epoch
        self.endpoint, self.max_hold_seconds, self._clock = endpoint, max_hold_seconds, clock
        self._pool = PagePool(pages, page_bytes)
        self._region = endpoint.register(self._pool.memory)
        self._pages = pages
        self._sessions = Sessions()
        self._desk = LeaseDesk()
        self._lock = threading.RLock()
        self._pulling = threading.Lock()
        self._offloaded = self._loaded = self._pulled = self._refused = 0

    # -- the engine's side --

    def note_chain(self, session: str, keys: Sequence[str]) -> None:
        """`session` now stands on these pages, in order; some may be stored only in a moment."""
        chain = tuple(keys)
        with self._lock:
            self._sessions.note(session, chain)
            lease = self._desk.current
            if lease is not None and lease.covers(session):
                lease.note(session, chain)
                self._pool.pin(chain)

    def prefix(self, keys: Sequence[str]) -> int:
        """How many pages, from the first on, could be loaded."""
        with self._lock:
            return self._pool.prefix(keys)

    def put(self, keys: Sequence[str], rows: torch.Tensor) -> bool:
        """Keep pages, uint8 [n, page_bytes]. False if there is no room for all of them."""
        with self._lock:
            fresh = [key not in self._pool for key in keys]
            kept = self._pool.put(keys, rows)
            self._pin_wanted(keys[:kept])
            self._refused += len(keys) - kept
            self._offloaded += sum(fresh[:kept]) * self.page_tokens
            return kept == len(keys)

    def rows(self, keys: Sequence[str]) -> torch.Tensor | None:
        """A copy of these pages for loading; None unless all are here."""
        with self._lock:
            found = self._pool.rows(keys)
            if found is not None:
                self._loaded += len(keys) * self.page_tokens
            return found

    def drop_all(self) -> None:
        """The engine flushed its cache: nothing here may be found any more. What a lease holds stays readable."""
        with self._lock:
            self._pool.drop_all()
            self._sessions.clear()

    def close(self) -> None:
        with self._lock:
            self._pool.unpin_all()
            self._region.close()

    # -- the control side --

    def retain(self, request: Retain) -> Retained:
        """Arm the hand-off. Idempotent per lease; a newer lease ends the older one. Raises Fenced for an older one."""
        with self._lock:
            self.sweep()
            hold = min(request.hold_seconds, self.max_hold_seconds)
            asked = None if request.sessions is None else frozenset(request.sessions)
            lease, new = self._desk.open(request.lease, asked, self._clock() + hold)
            if new:
                self._pool.unpin_all()
                for session in self._sessions.names():
                    if lease.covers(session):
                        for chain in self._sessions.chains(session):
                            lease.note(session, chain)
                            self._pool.pin(chain)
            missing = sorted((asked or frozenset()) - set(lease.held.names()))
            pinned = self._pool.pinned
            return Retained(
                lease=lease.number, pages=pinned, bytes=pinned * self._pool.page_bytes, missing=tuple(missing)
            )

    def manifest(self, number: int) -> KvManifest:
        """What the lease holds now: ask after writes have stopped. Raises Fenced if the lease is not held."""
        with self._lock:
            self.sweep()
            lease = self._desk.get(number)
            entries: dict[str, BufferEntry] = {}
            chains: dict[str, tuple[Chain, ...]] = {}
            for session in lease.held.names():
                whole = [self._readable_part(chain, entries) for chain in lease.held.chains(session)]
                if any(whole):
                    chains[session] = tuple(chain for chain in whole if chain)
            pages = BufferManifest(
                session=self.endpoint.session, version=0, boot_epoch=self.boot_epoch, entries=tuple(entries.values())
            )
            return KvManifest(
                lease=number, geometry=self.geometry, page_tokens=self.page_tokens, chains=chains, pages=pages
            )

    def pull(self, request: Pull) -> Pulled:
        """Read missing pages from their source and keep those that verify; repeating it reads only what is missing.

        Raises InvalidInput for another geometry, TransferFailed when the source does not answer or does not verify
        (batches read before that stay), StillHeld while another pull takes too long.
        """
        manifest = request.manifest
        if (manifest.geometry, manifest.page_tokens) != (self.geometry, self.page_tokens):
            raise InvalidInput(f"is {manifest.geometry}, this engine has {self.geometry}", field="manifest.geometry")
        deadline = time.monotonic() + request.timeout_seconds
        asked = None if request.sessions is None else set(request.sessions)
        chains = {name: found for name, found in manifest.chains.items() if asked is None or name in asked}
        if not self._pulling.acquire(timeout=request.timeout_seconds):
            raise StillHeld("another pull is still running")
        try:
            wanted = list(dict.fromkeys(key for found in chains.values() for chain in found for key in chain))
            read = self._read_missing(manifest.pages, wanted, deadline)
        finally:
            self._pulling.release()
        with self._lock:
            for session, found in chains.items():
                for chain in found:
                    self.note_chain(session, chain)
            arrived = {
                name: found[-1] for name, found in chains.items() if self._pool.prefix(found[-1]) == len(found[-1])
            }
        return Pulled(
            arrived=tuple(arrived),
            pages=read,
            present=len(wanted) - read,
            tokens=sum(len(chain) for chain in arrived.values()) * self.page_tokens,
            bytes=read * self._pool.page_bytes,
        )

    def acknowledge(self, number: int) -> LeaseEnded:
        """The destination has verified its copy: end the lease. Only the first call does, later ones change nothing.
        A number above the current lease's ends that too, as a newer lease would."""
        with self._lock:
            self.sweep()
            ended = self._desk.end(number)
            if self._desk.current is None:
                self._pool.unpin_all()
            return LeaseEnded(lease=number, released=ended)

    def release(self, number: int, *, abandon: bool = False) -> LeaseEnded:
        """End a lease that may be unacknowledged. Raises StillHeld while it is neither acknowledged nor expired,
        unless `abandon`: the hand-off was given up, whoever still reads will fail its checksums."""
        with self._lock:
            self.sweep()
            if not abandon:
                self._desk.refuse_early_release(number)
            return self.acknowledge(number)

    def sweep(self) -> None:
        """End the lease if its time is over. Called on every request and by the control server's idle loop."""
        with self._lock:
            if self._desk.expire(self._clock()):
                self._pool.unpin_all()

    def stats(self) -> LinkerStats:
        with self._lock:
            self.sweep()
            return LinkerStats(
                page_tokens=self.page_tokens,
                pool_pages=self._pages,
                used_pages=self._pool.used,
                pinned_pages=self._pool.pinned,
                leases=int(self._desk.current is not None),
                sessions=len(self._sessions),
                used_bytes=self._pool.used * self._pool.page_bytes,
                offloaded_tokens=self._offloaded,
                loaded_tokens=self._loaded,
                pulled_tokens=self._pulled,
                refused_pages=self._refused,
                expired_leases=self._desk.expired,
                quarantined_bytes=self.endpoint.quarantined_bytes,
            )

    # -- inside --

    def _pin_wanted(self, keys: Sequence[str]) -> None:
        lease = self._desk.current
        if lease is not None:
            self._pool.pin(key for key in keys if key in lease.wanted)

    def _readable_part(self, chain: Chain, entries: dict[str, BufferEntry]) -> Chain:
        """The part of a chain, from its first page on, that can be read; its pages are added to `entries`."""
        for length, key in enumerate(chain):
            if key in entries:
                continue
            found = self._pool.readable(key)
            if found is None:
                return chain[:length]
            page, seen = found
            entries[key] = BufferEntry(
                name=key, address=page.data_ptr(), bytes=page.nbytes, dtype="uint8", shape=tuple(page.shape), xxh3=seen
            )
        return chain

    def _read_missing(self, source: BufferManifest, wanted: list[str], deadline: float) -> int:
        """Batch by batch, so that the landing memory is bounded; returns how many pages were read and kept."""
        with self._lock:
            missing = {key for key in wanted if key not in self._pool}
        entries = [entry for entry in source.entries if entry.name in missing]
        size, kept = max(1, LANDING_BYTES // self._pool.page_bytes), 0
        for start in range(0, len(entries), size):
            batch = entries[start : start + size]
            landing = torch.zeros((len(batch), self._pool.page_bytes), dtype=torch.uint8)
            with self.endpoint.register(landing):
                self.endpoint.read(
                    source.model_copy(update={"entries": tuple(batch)}),
                    {entry.name: landing[row] for row, entry in enumerate(batch)},
                    timeout_seconds=max(0.1, deadline - time.monotonic()),
                )
            with self._lock:
                names = [entry.name for entry in batch]
                stored = self._pool.put(names, landing)
                self._pin_wanted(names[:stored])
                self._refused += len(names) - stored
            kept += stored
            self._pulled += stored * self.page_tokens
            if stored < len(batch):
                break
        return kept

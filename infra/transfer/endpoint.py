"""A process's end of the Mooncake transfer engine: register memory, read from peers, never trust a return code alone.

What it guarantees: memory stays alive while registered; every return code is checked; a read either verifies against
its manifest's checksums or raises TransferFailed; memory that the engine might still write to is never given back.
What it does not know: what the bytes mean, and when a source may overwrite them (see `published`).

Facts of mooncake 0.3.13 this rests on:
- The protocol argument of `initialize` does not choose the transport, environment variables do.
- `transfer_check_status` looks at a batch's first entry only and frees the whole batch with it, and
  `get_batch_transfer_status` spins on a core: hence one-entry batches, a bounded window of them, and naps between polls
  (as fast as large batches over TCP).
- A dead peer fails at once; a hanging one after the progress time-out, and then late bytes may still land.
- The first contact with a hanging peer blocks for 60 s (not configurable) and holds a lock every other read needs; a
  probe blocks as long but holds no lock. Hence a new session is probed first, in a thread that may be left behind.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from infra.transfer.buffers import Buffer, address_of, dtype_name
from infra.transfer.pieces import PIECE_BYTES, Checking, Piece, Watch, cut
from workflows.messages.errors import InvalidInput, TransferFailed
from workflows.messages.transfer import BufferManifest

log = logging.getLogger(__name__)

WINDOW_ENTRIES = 64
WINDOW_BYTES = 2 * PIECE_BYTES
LOOK_BYTES = 1 << 20
"""About as much is hashed between two looks at what is under way."""
PROGRESS_TIMEOUT_SECONDS = 3
SHORTEST_NAP_SECONDS, LONGEST_NAP_SECONDS = 20e-6, 2e-3
_FAILED_SUBMITS = (0, 2**64 - 1)
_FORCE = {"tcp": "MC_FORCE_TCP", "rdma": "MC_FORCE_HCA"}


@dataclass(eq=False)
class RegisteredBuffer:
    """Memory a peer may read and this process may read into. The endpoint keeps it alive until `close`.

    `poisoned` is set when a read into it timed out: the engine may still write to it, so it must not be used again, is
    never unregistered and never freed before the process ends.
    """

    endpoint: "TransferEndpoint"
    buffer: Buffer
    address: int
    bytes: int
    poisoned: bool = False
    holders: int = 1

    def close(self) -> None:
        """Unregister, then let go of the memory. Closing a poisoned buffer keeps both."""
        self.endpoint.unregister(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class _Flight:
    """One submitted read."""

    batch: int
    number: int
    piece: Piece
    submitted: float = field(default_factory=time.monotonic)


class TransferEndpoint:
    """Lazily started transfer engine of this process. Thread-safe; reads block, so call them from a worker thread.

    `protocol` is ``tcp`` or ``rdma`` (which fails loudly without a NIC); `devices` names the NICs, comma-separated.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        protocol: str = "tcp",
        devices: str = "",
        quarantine_limit_bytes: int = 2 << 30,
    ) -> None:
        if protocol not in _FORCE:
            raise InvalidInput(f"must be one of {sorted(_FORCE)}, not {protocol!r}", field="transfer.protocol")
        self.host, self.protocol, self.devices = host, protocol, devices
        self.quarantine_limit_bytes = quarantine_limit_bytes
        self._engine: Any = None
        self._regions: dict[int, RegisteredBuffer] = {}
        self._reached: set[str] = set()
        self._lock = threading.RLock()

    @property
    def session(self) -> str:
        """``host:port`` by which peers reach this process; changes with every start of the process."""
        return f"{self.host}:{self._started().get_rpc_port()}"

    @property
    def quarantined_bytes(self) -> int:
        """Bytes that timed-out reads made unusable until this process ends."""
        with self._lock:
            return sum(region.bytes for region in self._regions.values() if region.poisoned)

    def register(self, buffer: Buffer) -> RegisteredBuffer:
        """Make a contiguous, non-empty buffer transferable. The very same memory may be registered more than once.

        Raises InvalidInput for memory that overlaps another registration in part, TransferFailed if the engine refuses.
        """
        address, length = address_of(buffer), buffer.nbytes
        if length == 0:
            raise InvalidInput("an empty buffer cannot be registered", field="buffer")
        with self._lock:
            if self.quarantined_bytes > self.quarantine_limit_bytes:
                raise TransferFailed("timed-out reads hold too much memory; restart this process")
            known = self._regions.get(address)
            if known is not None and known.bytes == length and not known.poisoned:
                known.holders += 1
                return known
            for region in self._regions.values():
                if address < region.address + region.bytes and region.address < address + length:
                    raise InvalidInput("overlaps memory that is registered already", field="buffer")
            code = self._started().register_memory(address, length)
            if code != 0:
                raise TransferFailed(f"registering {length} bytes failed with code {code}")
            region = RegisteredBuffer(self, buffer, address, length)
            self._regions[address] = region
            return region

    def unregister(self, region: RegisteredBuffer) -> None:
        """See RegisteredBuffer.close. Closing twice is harmless."""
        with self._lock:
            if self._regions.get(region.address) is not region or region.poisoned:
                return
            region.holders -= 1
            if region.holders > 0:
                return
            code = self._started().unregister_memory(region.address)
            if code != 0:
                raise TransferFailed(f"unregistering failed with code {code}; the memory stays alive")
            del self._regions[region.address]

    def read(
        self,
        manifest: BufferManifest,
        into: Mapping[str, Buffer],
        *,
        timeout_seconds: float = 30.0,
        watch: Watch | None = None,
    ) -> None:
        """Fill `into` (same names, byte lengths and dtypes as the manifest) from the source and verify every checksum.

        What has landed is verified while the rest is read; `watch` sees it too, and must not trust it before the read
        has returned. Buffers inside registered memory are used as they are, others are registered for the call. Raises
        InvalidInput for a mismatch of names or shapes, TransferFailed when the read fails, times out or does not
        verify: what `into` holds is then garbage. After a time-out its registrations are poisoned as well; retry into
        new memory.
        """
        _match(manifest, into)
        deadline = time.monotonic() + timeout_seconds
        wanted = [entry for entry in manifest.entries if entry.bytes]
        if wanted:
            self._reach(manifest.session, deadline)
        regions, temporary = self._cover({entry.name: into[entry.name] for entry in wanted})
        try:
            self._pull(manifest.session, list(cut(wanted, into, PIECE_BYTES)), deadline, Checking(into, watch).take)
        except _TimedOut as late:
            with self._lock:
                for region in regions.values():
                    region.poisoned = True
            raise TransferFailed(f"reading from {manifest.session} timed out: {late}; its buffers are lost") from None
        finally:
            for region in temporary:
                region.close()

    def _cover(self, buffers: Mapping[str, Buffer]) -> tuple[dict[str, RegisteredBuffer], list[RegisteredBuffer]]:
        """The registration each buffer lies in, and those made here because there was none."""
        regions: dict[str, RegisteredBuffer] = {}
        temporary: list[RegisteredBuffer] = []
        with self._lock:
            try:
                for name, buffer in buffers.items():
                    region = self._enclosing(address_of(buffer), buffer.nbytes)
                    if region is None:
                        region = self.register(buffer)
                        temporary.append(region)
                    elif region.poisoned:
                        raise InvalidInput("lies in memory a timed-out read may still write to", field=name)
                    regions[name] = region
            except Exception:
                for region in temporary:
                    region.close()
                raise
        return regions, temporary

    def _enclosing(self, address: int, length: int) -> RegisteredBuffer | None:
        exact = self._regions.get(address)
        if exact is not None and length <= exact.bytes:
            return exact
        for region in self._regions.values():
            if region.address <= address and address + length <= region.address + region.bytes:
                return region
        return None

    def _pull(self, session: str, pieces: list[Piece], deadline: float, look: Callable[[Piece], str]) -> None:
        """Read all pieces, at most WINDOW_ENTRIES and WINDOW_BYTES of them in flight, and `look` at them in order.

        After a failure nothing new is submitted, but what is in flight is waited for: only then nobody writes any more.
        """
        engine, nap = self._started(), SHORTEST_NAP_SECONDS
        flights, landed = list[_Flight](), set[int]()
        submitted = looked = under_way = 0
        failure = ""
        while flights or (submitted < len(pieces) and not failure) or looked in landed:
            while submitted < len(pieces) and not failure and _has_room(len(flights), under_way):
                piece = pieces[submitted]
                batch = engine.batch_transfer_async_read(session, [piece.local], [piece.remote], [piece.bytes])
                if batch in _FAILED_SUBMITS:
                    failure = f"no connection for {piece.entry.name}"
                else:
                    flights.append(_Flight(batch, submitted, piece))
                    under_way += piece.bytes
                    submitted += 1
            pending: list[_Flight] = []
            for flight in flights:
                code = engine.transfer_check_status(flight.batch)
                now = time.monotonic()
                if code == 0 and now < deadline:
                    pending.append(flight)
                    continue
                under_way -= flight.piece.bytes
                if code == 1:
                    landed.add(flight.number)
                    continue
                name = flight.piece.entry.name
                if code in (0, -2) or now - flight.submitted > 0.8 * PROGRESS_TIMEOUT_SECONDS:
                    raise _TimedOut(f"{name} after {now - flight.submitted:.1f} s")
                failure = failure or f"{name} failed with code {code}"
            progressed = len(pending) < len(flights)
            flights = pending
            seen = 0
            while looked in landed and seen < LOOK_BYTES:  # not all: what has landed meanwhile makes room for more
                landed.remove(looked)
                failure = failure or look(pieces[looked])
                seen += pieces[looked].bytes
                looked += 1
            if flights and not seen:
                nap = SHORTEST_NAP_SECONDS if progressed else min(nap * 2, LONGEST_NAP_SECONDS)
                time.sleep(nap)
        if failure:
            raise TransferFailed(f"reading from {session}: {failure}")

    def _reach(self, session: str, deadline: float) -> None:
        """Make sure that a peer never read from before answers, without risking the engine's lock on it."""
        if session in self._reached:
            return
        engine, codes = self._started(), list[int]()
        probe = threading.Thread(target=lambda: codes.append(engine.send_probe(session)), daemon=True)
        probe.start()
        probe.join(max(0.0, deadline - time.monotonic()))
        if codes != [0]:
            raise TransferFailed(f"no answer from {session}" + (f": code {codes[0]}" if codes else " in time"))
        self._reached.add(session)

    def _started(self) -> Any:
        with self._lock:
            if self._engine is None:
                self._engine = _start_engine(self.host, self.protocol, self.devices)
            return self._engine


def _has_room(flights: int, under_way: int) -> bool:
    """Whether one more piece may be submitted; one alone always may."""
    return flights == 0 or (flights < WINDOW_ENTRIES and under_way < WINDOW_BYTES)


class _TimedOut(Exception):
    """A read did not end in time, so its destination may still be written to."""


def _match(manifest: BufferManifest, into: Mapping[str, Buffer]) -> None:
    names = {entry.name for entry in manifest.entries}
    if names != set(into):
        raise InvalidInput(f"names differ from the manifest's: {sorted(names ^ set(into))[:5]}", field="into")
    for entry in manifest.entries:
        have = (into[entry.name].nbytes, dtype_name(into[entry.name]))
        if have != (entry.bytes, entry.dtype):
            raise InvalidInput(f"is {have}, the source has {(entry.bytes, entry.dtype)}", field=entry.name)


def _start_engine(host: str, protocol: str, devices: str) -> Any:
    """Start an engine. Transport and time-outs can only be chosen through the environment of this process."""
    for name in _FORCE.values():
        os.environ.pop(name, None)
    os.environ[_FORCE[protocol]] = "1"
    for name in ("MC_TCP_PROGRESS_TIMEOUT_SEC", "MC_TCP_STATUS_TIMEOUT_SEC"):
        os.environ.setdefault(name, str(PROGRESS_TIMEOUT_SECONDS))
    os.environ.setdefault("MC_LOG_LEVEL", "WARNING")
    from mooncake.engine import TransferEngine  # pyright: ignore[reportMissingImports]

    engine = TransferEngine()
    code = engine.initialize(host, "P2PHANDSHAKE", protocol, devices)
    if code != 0:
        raise TransferFailed(f"the transfer engine did not start ({protocol} on {host}): code {code}")
    log.info("transfer engine listens on %s:%d (%s)", host, engine.get_rpc_port(), protocol)
    return engine

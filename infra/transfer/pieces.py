"""A read cut into pieces, so that what has landed is checked while the rest is still on its way.

Pieces are looked at in their order, whatever the order they land in, each of them once: hashes of a stream work.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from xxhash import xxh3_64

from infra.transfer.buffers import Buffer, address_of, bytes_at, is_on_host
from workflows.messages.transfer import BufferEntry

PIECE_BYTES = 8 << 20

Watch = Callable[[str, memoryview], None]
"""Called with each entry's name and its bytes as they land: a piece at a time, in order. Must not raise."""


@dataclass(frozen=True)
class Piece:
    """`bytes` of an entry, from `remote` in the source's memory to `local` in ours."""

    entry: BufferEntry
    local: int
    remote: int
    bytes: int
    is_last: bool


def cut(entries: Iterable[BufferEntry], into: Mapping[str, Buffer], size: int) -> Iterator[Piece]:
    """Pieces of at most `size` bytes, entry after entry; of none that is empty."""
    for entry in entries:
        local = address_of(into[entry.name])
        for start in range(0, entry.bytes, size):
            length = min(size, entry.bytes - start)
            yield Piece(entry, local + start, entry.address + start, length, start + length == entry.bytes)


class Checking:
    """Verifies entries against their checksums, piece by piece, and shows the bytes to `watch` first."""

    def __init__(self, into: Mapping[str, Buffer], watch: Watch | None = None) -> None:
        self._into, self._watch = into, watch
        self._running = xxh3_64()

    def take(self, piece: Piece) -> str:
        """Look at the next piece; says what is wrong with an entry that is complete and not what was promised."""
        name, buffer = piece.entry.name, self._into[piece.entry.name]
        if is_on_host(buffer):
            seen = bytes_at(piece.local, piece.bytes)
            self._look(name, seen)
            self._running.update(seen)
        elif piece.is_last:  # device memory is only looked at whole, through a copy
            buffer = buffer.cpu()  # pyright: ignore[reportAttributeAccessIssue]
            seen = bytes_at(address_of(buffer), buffer.nbytes)
            self._look(name, seen)
            self._running.update(seen)
        if not piece.is_last:
            return ""
        found, self._running = self._running.intdigest(), xxh3_64()
        return "" if found == piece.entry.xxh3 else f"{name} does not match its checksum"

    def _look(self, name: str, data: memoryview) -> None:
        if self._watch is not None:
            self._watch(name, data)

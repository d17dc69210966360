"""A bounded record of a process' output: the beginning and the end, always valid UTF-8 without NUL.

Reading never stops: what does not fit is counted and dropped, so a writer never blocks on a full pipe. Bytes that are
not UTF-8, and NUL, appear as U+FFFD.
"""

import codecs
from typing import BinaryIO


def plain_text(text: str, limit: int = 2000) -> str:
    """`text` made fit for JSON, a database and a Temporal payload: no NUL, no lone surrogate, at most `limit` chars."""
    clean = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


class CappedCapture:
    """Keeps the first and the last half of `cap` bytes of a stream. The first half is on disk as it comes."""

    def __init__(self, file: BinaryIO, cap: int) -> None:
        self._file = file
        self._head_room = cap // 2
        self._tail_room = cap - cap // 2
        self._tail = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.total = 0
        self._kept_first = 0

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        head, rest = data[: self._head_room], data[self._head_room :]
        if head:
            self._head_room -= len(head)
            self._kept_first += len(head)
            self._write(self._decoder.decode(head))
            self._file.flush()
        if rest:
            self._tail += rest[-self._tail_room :]
            if len(self._tail) > 4 * self._tail_room:
                del self._tail[: -self._tail_room]

    def close(self) -> int:
        """Write the marker and the end; returns how many bytes were dropped."""
        tail = bytes(self._tail[-self._tail_room :])
        dropped = self.total - self._kept_first - len(tail)
        if dropped:
            self._write(self._decoder.decode(b"", True))
            self._write(f"\n[... {dropped} bytes of output dropped ...]\n")
            self._decoder.reset()
        self._write(self._decoder.decode(tail, True))
        self._file.close()
        return dropped

    def _write(self, text: str) -> None:
        self._file.write(text.replace("\0", "\ufffd").encode())

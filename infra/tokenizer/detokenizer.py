"""Text of a token stream, piece by piece, never cutting a character in two.

Invariant: the concatenation of all pieces, `flush` included, is the text of the whole stream decoded at once. It knows
nothing of engines: it lives with the request, so a character split across a reroute survives.
"""

import codecs
from collections.abc import Iterable, Mapping


class ByteVocabulary:
    """Bytes of every token of a byte-level BPE. Control tokens have none: they are not part of the text."""

    def __init__(self, tokens: Mapping[str, int], silent: frozenset[int], verbatim: frozenset[int]) -> None:
        """`tokens` maps byte-level spelling to id; `silent` ids decode to nothing; `verbatim` ids (added tokens that
        are not special) are spelled in plain text."""
        table = _unicode_to_byte()
        self._bytes: dict[int, bytes] = {}
        for text, token in tokens.items():
            if token in silent:
                self._bytes[token] = b""
            elif token in verbatim or any(char not in table for char in text):
                self._bytes[token] = text.encode()
            else:
                self._bytes[token] = bytes(table[char] for char in text)

    def __getitem__(self, token: int) -> bytes:
        """Bytes of one id; an id the tokenizer does not know (a padded vocabulary) has none."""
        return self._bytes.get(token, b"")


class Detokenizer:
    """Incremental decoder of one answer."""

    def __init__(self, vocabulary: ByteVocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """New text that `ids` completes; bytes of an unfinished character are kept for the next call."""
        return self._decoder.decode(b"".join(self._vocabulary[token] for token in ids))

    def flush(self) -> str:
        """What is left at the end of the stream: U+FFFD for a character that was cut off, else nothing."""
        return self._decoder.decode(b"", final=True)


def _unicode_to_byte() -> dict[str, int]:
    """Inverse of the byte-to-printable-character table that byte-level BPE vocabularies are spelled with."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    spare = 256
    for byte in range(256):
        if byte not in printable:
            table[chr(spare)] = byte
            spare += 1
    return table

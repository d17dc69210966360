"""Finds the end of a JSON value in text that arrives piece by piece, without parsing anything twice.

It counts brackets and skips strings; whether the value is valid JSON is for its reader to find out.
"""

import re

_OUTSIDE = re.compile(r'["{}\[\]<]')
_INSIDE = re.compile(r'["\\\n<]')


class ValueScanner:
    """Scans an object or an array. `close` is a marker that ends the value early where no valid JSON could hold it:
    outside a string, or in a string that a raw line break has already made invalid. Empty: there is no such marker."""

    def __init__(self, close: str) -> None:
        self._close = close
        self._depth = 0
        self._in_string = self._escaped = self._broken = False
        self.over = False
        """The value is complete."""
        self.cut = False
        """The closing marker came first."""

    def push(self, text: str) -> int:
        """How much of `text` belongs to the value. The rest follows it, or may be the beginning of the marker; give
        it again with the next piece."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            char, at = found.group(), found.end()
            if char == "<":
                if self._close and (not self._in_string or self._broken):
                    here = text[found.start() : found.start() + len(self._close)]
                    if here == self._close:
                        self.cut = True
                    if self._close.startswith(here):
                        return found.start()
            elif self._in_string:
                self._escaped = char == "\\"
                self._broken = self._broken or char == "\n"
                self._in_string = char != '"'
            elif char == '"':
                self._in_string, self._broken = True, False
            else:
                self._depth += 1 if char in "{[" else -1
                if self._depth <= 0:
                    self.over = True
                    return at
        return len(text)

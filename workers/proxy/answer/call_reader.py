"""What every reader of a tool call shares: text comes in pieces, steps take from the buffer until one needs more."""

from workers.proxy.answer.events import Event


class CallReader:
    """Reads what follows `opener`, up to `close`. A subclass has a method per step and makes `_step` the next one.

    `over` once it is through; `rest` is then what follows. `next_index` is the index of the next call.
    """

    def __init__(self, index: int, opener: str, close: str) -> None:
        self.next_index = index
        self._opener, self._close = opener, close
        self._buffer = ""
        self._step = self._head
        self.over = False
        self.rest = ""

    def push(self, text: str) -> list[Event]:
        self._buffer += text
        events: list[Event] = []
        while not self.over and self._step(events):
            pass
        return events

    def _head(self, events: list[Event]) -> bool:
        """The first step: is this a call, and of what? Whether it got anywhere with the buffer as it is."""
        raise TypeError(f"{type(self).__name__} does not say how a call begins")

    def _through(self, end: int) -> bool:
        self.over, self.rest = True, self._buffer[end:]
        return True

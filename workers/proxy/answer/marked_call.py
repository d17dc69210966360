"""A tool call whose name stands outside the JSON, as DeepSeek samples it::

    <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
    ```json
    {"key": "value"}
    ```<｜tool▁call▁end｜>

and, since V3.1, `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{"key": "value"}<｜tool▁call▁end｜>`.
Invariants as for JSON calls.
"""

import re

from workers.proxy.answer.events import Event, Kind
from workers.proxy.answer.json_call import JsonCallReader

_SEPARATOR = "<｜tool▁sep｜>"
_HEAD = re.compile(
    rf"\s*(?:function{_SEPARATOR}([^\n<]+)\n```json\n|((?!function<)[^\n<]+){_SEPARATOR})\s*(?=\S)", re.DOTALL
)


class MarkedCallReader(JsonCallReader):
    """Reads what follows `opener`, up to `close`."""

    closings = ("", "```")

    def finish(self) -> list[Event]:
        if self._step != self._head:
            return super().finish()
        self.over = True
        return [Event(Kind.TEXT, self._opener + self._buffer)]

    def _head(self, events: list[Event]) -> bool:
        match = _HEAD.match(self._buffer)
        if match is not None:
            return self._named(events, (match.group(1) or match.group(2)).strip(), match.end())
        return self._close in self._buffer and self._no_call(events, 0)

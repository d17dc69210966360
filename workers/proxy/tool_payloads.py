"""Tool calls as they were sampled, by the id the proxy gave them.

Harnesses write a call's arguments anew when they send it back as history: defaults filled in, keys dropped, text
trimmed. The model was conditioned on what it had sampled, and is again: a call whose id is known gets its raw name and
arguments back before histories are compared, so it never looks like another branch.
"""

from collections.abc import Mapping, Sequence
from typing import Any


class ToolPayloads:
    """The raw calls of one execution's answers."""

    def __init__(self) -> None:
        self._by_id: dict[str, Mapping[str, Any]] = {}

    def remember(self, answer: Mapping[str, Any]) -> None:
        """Keep the calls of an answer, if it has any."""
        for call in answer.get("tool_calls", ()):
            self._by_id[call["id"]] = call["function"]

    def restored(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages with the raw payload of every known call; the very same object where nothing differs."""
        if not self._by_id:
            return messages
        found: list[Mapping[str, Any]] | None = None
        for index, message in enumerate(messages):
            calls = message.get("tool_calls") if isinstance(message, Mapping) else None
            if not isinstance(calls, Sequence) or not any(self._differs(call) for call in calls):
                continue
            found = list(messages) if found is None else found
            raw = [{**call, "function": self._by_id[call["id"]]} if self._differs(call) else call for call in calls]
            found[index] = {**message, "tool_calls": raw}
        return messages if found is None else found

    def _differs(self, call: Any) -> bool:
        known = self._by_id.get(call["id"]) if isinstance(call, Mapping) and isinstance(call.get("id"), str) else None
        return known is not None and call.get("function") != known

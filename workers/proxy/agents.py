"""Whose conversation a summary is of, where its harness does not say: the agent's whose beginning it repeats.

Kept per execution, bounded, and lost with the proxy: then a summary counts as the main agent's.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness_adapters.events import text_of
from harness_adapters.protocol import CallRole
from workers.proxy.call import ModelRequest

_DEPTH = 4
"""Messages by which beginnings are told apart. Agents of one harness may share the first: it describes the machine."""
_MOST_BEGINNINGS = 4096


class Agents:
    """How the conversations of an execution's agents began."""

    def __init__(self) -> None:
        self._roles: dict[bytes, set[CallRole]] = {}

    def settled(self, request: ModelRequest) -> ModelRequest:
        """The request with the role it really has. Conversations that begin are remembered."""
        if request.role in (CallRole.MAIN, CallRole.SUB_AGENT):
            if len(request.messages) <= 2 * _DEPTH:
                self._remember(request)
        elif request.role is CallRole.MAIN_SUMMARY and self._is_of_a_sub_agent(request):
            return replace(request, role=CallRole.SUB_AGENT_SUMMARY)
        return request

    def _remember(self, request: ModelRequest) -> None:
        for key in _beginnings(request.messages):
            if key in self._roles or len(self._roles) < _MOST_BEGINNINGS:
                self._roles.setdefault(key, set()).add(request.role)

    def _is_of_a_sub_agent(self, request: ModelRequest) -> bool:
        deepest: set[CallRole] = set()
        for key in _beginnings(request.messages):
            deepest = self._roles.get(key, deepest)
        return deepest == {CallRole.SUB_AGENT}


def _beginnings(messages: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """A key for the first message, the first two, ... System prompts say what is wanted, not who speaks."""
    key, count = b"", 0
    for message in messages:
        if count == _DEPTH or not isinstance(message, Mapping):
            return
        if message.get("role") != "system":
            said = f"{message.get('role')}\n{text_of(message.get('content'))}"
            key = hashlib.sha256(key + said.encode(errors="replace")).digest()
            count += 1
            yield key

"""The executions that may call the model now, by the hash of their token."""

import asyncio
import hashlib
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from workers.proxy.agents import Agents
from workers.proxy.call import LiveCall
from workers.proxy.history import History
from workflows.messages.errors import Fenced
from workflows.messages.routing import RegisterExecution

REMEMBERED_CLOSED = 4096


@dataclass(eq=False)
class LiveExecution:
    """`history` is None until the first call reads it back from the records.

    An answer that nobody received is kept by its name alone, so that lost clients cost no memory; it is read back if it
    is asked for again, unless somebody still holds it (`remembered`).
    """

    registration: RegisterExecution
    history: History | None = None
    agents: Agents = field(default_factory=Agents)
    next_sequence: int = 0
    answered: int = 0
    called: bool = False
    running: dict[str, LiveCall] = field(default_factory=dict)  # by request hash
    undelivered: dict[str, str] = field(default_factory=dict)  # calls by request hash
    remembered: WeakValueDictionary[str, LiveCall] = field(default_factory=WeakValueDictionary)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        return self.registration.execution


class Executions:
    """Tokens are compared as sha256, so the table holds no secret."""

    def __init__(self) -> None:
        self._by_name: dict[str, LiveExecution] = {}
        self._by_token: dict[str, LiveExecution] = {}
        self._closed: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def register(self, registration: RegisterExecution) -> None:
        """Open an execution, or renew it for a later attempt. Raises Fenced for an earlier one."""
        known = self._by_name.get(registration.execution)
        if known is None:
            known = LiveExecution(registration)
            self._by_name[registration.execution] = known
        elif registration.attempt < known.registration.attempt:
            raise Fenced(f"{registration.execution} is at attempt {known.registration.attempt}")
        else:
            self._by_token.pop(known.registration.token_sha256, None)
            known.registration = registration
        self._by_token[registration.token_sha256] = known
        self._closed.pop(registration.token_sha256, None)

    def close(self, execution: str) -> LiveExecution | None:
        """No further call is accepted; its token is answered with "gone" from now on."""
        known = self._by_name.pop(execution, None)
        if known is not None:
            token = known.registration.token_sha256
            self._by_token.pop(token, None)
            self._closed[token] = None
            while len(self._closed) > REMEMBERED_CLOSED:
                del self._closed[next(iter(self._closed))]
        return known

    def of_token(self, token: str) -> LiveExecution | None:
        return self._by_token.get(_hash(token))

    def was_closed(self, token: str) -> bool:
        return _hash(token) in self._closed

    def in_flight(self) -> dict[str, int | None]:
        """Executions with a running or waiting call, and the newest weight version among its tokens."""
        flying: dict[str, int | None] = {}
        for name, execution in self._by_name.items():
            if execution.running:
                versions = [c.so_far.newest_version for c in execution.running.values()]
                flying[name] = max((v for v in versions if v is not None), default=None)
        return flying

    def all(self) -> list[LiveExecution]:
        return list(self._by_name.values())


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()

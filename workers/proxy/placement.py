"""Which engine a request or an execution goes to: pure functions of what the route table knows.

Never through a closed door, never to older weights than a token the request already has, never beyond what an engine
runs at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    """One engine as placement sees it. `free_at`: time from which it is worth trying again after a failure."""

    name: str
    cell: int
    standalone: bool
    door_open: bool
    version: int | None
    slots: int
    kv_tokens: int
    running: int
    reserved_tokens: int
    executions: int
    free_at: float = 0.0
    grammars: bool = True


@dataclass(frozen=True)
class Demand:
    """What a request needs. `home`: the engine its execution is routed to; `since`: when it began to wait.

    `constrained`: its output must follow a grammar.
    """

    home: str | None
    newest_version: int | None
    reserved_tokens: int
    since: float
    constrained: bool = False


def serves(engine: Engine, newest_version: int | None, *, constrained: bool = False) -> bool:
    """Whether a request with tokens of `newest_version` may go there at all."""
    if constrained and not engine.grammars:
        return False
    return engine.door_open and engine.version is not None and engine.version >= (newest_version or 0)


def has_room(engine: Engine, reserved_tokens: int) -> bool:
    """Whether it can run one more request at once; an idle engine takes any."""
    if engine.running >= engine.slots:
        return False
    return not engine.running or engine.reserved_tokens + reserved_tokens <= engine.kv_tokens


def place(engines: Sequence[Engine], demand: Demand, now: float, sticky_wait_seconds: float) -> str | None:
    """Where the request goes now; None: it waits.

    Home first, for its KV; a home that is full or whose door is closed is waited for a while, one that just failed or
    that has gone is not.
    """
    able = [e for e in engines if serves(e, demand.newest_version, constrained=demand.constrained)]
    home = next((engine for engine in engines if engine.name == demand.home), None)
    if home is not None:
        failed = home.free_at > now
        if not failed and home in able and has_room(home, demand.reserved_tokens):
            return home.name
        if not failed and now - demand.since < sticky_wait_seconds:
            return None
    rested = [e for e in able if e.free_at <= now and has_room(e, demand.reserved_tokens)]
    if not rested:
        return None
    return min(rested, key=lambda e: (e.executions / e.slots, e.running / e.slots, not e.standalone, -e.cell)).name


def kept_free(engines: Sequence[Engine], demand: Demand, now: float) -> str | None:
    """The engine that takes nothing else until a request that has waited too long fits; None if none may serve it.

    Without this, smaller requests could take every bit of room that becomes free for ever. The wait is then bounded by
    what already runs there.
    """
    able = [e for e in engines if serves(e, demand.newest_version, constrained=demand.constrained) and e.free_at <= now]
    if not able:
        return None
    return min(able, key=lambda e: (e.running / e.slots, e.reserved_tokens, e.name)).name


def rehome(engines: Sequence[Engine], leaving: str, executions: Mapping[str, int | None]) -> dict[str, str]:
    """New homes of the `executions` (-> newest version of a request in flight) of a leaving engine.

    Standalone engines first, then cells in descending index, each within its slots; "": no room, it waits.
    """
    others = [engine for engine in engines if engine.name != leaving]
    preferred = sorted(others, key=lambda engine: (not engine.standalone, -engine.cell))
    load = {engine.name: engine.executions for engine in others}
    homes: dict[str, str] = {}
    for execution, newest in executions.items():
        for engine in preferred:
            if serves(engine, newest) and load[engine.name] < engine.slots:
                homes[execution] = engine.name
                load[engine.name] += 1
                break
        else:
            homes[execution] = ""
    return homes

"""Role changes and ledger entries as plain rows, and where every cell was at every moment.

A cell's role follows from its boots and its recorded transitions alone; what the Scheduler believed is in the ledger.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

LEAVING = ("to_training", "retire")
"""Changes that take a cell out of rollout (or, `retire`, out of the fleet)."""
ROLE_CHANGES = ("to_training", "to_rollout", "retire")
_BESIDE = ("take_over",)
"""Changes beside which a cell does what it did."""
_DURING = {"boot": "starting", "publish": "publishing", "retire": "retiring"}
_AFTER = {"to_training": "training", "retire": "retired"}
_FAILED = {"rolled_back": "rollout", "parked": "parked", "superseded": "starting", "rebooted": "starting"}


@dataclass(frozen=True)
class Change:
    """One recorded transition of one cell. Moments in seconds since the epoch; `result` empty: not ended."""

    transition: str
    cell: int
    direction: str
    started_at: float
    ended_at: float
    result: str
    steps: tuple[Mapping[str, Any], ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.ended_at - self.started_at

    @property
    def verbs(self) -> tuple[str, ...]:
        """What was done to worker groups, in order: `rollout suspend`."""
        return tuple(self.figures.get("verbs") or ())

    def figure(self, name: str) -> int:
        return int(self.figures.get(name) or 0)


@dataclass(frozen=True)
class Boot:
    cell: int
    at: float


@dataclass(frozen=True)
class Span:
    """A cell in one role: starting, rollout, to_training, training, to_rollout, parked, retiring, retired; or
    publishing: in rollout, its door closed while new weights are loaded."""

    cell: int
    begin: float
    end: float
    role: str

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Roles:
    """Every cell's role over time, until `end`."""

    def __init__(self, changes: Iterable[Change], boots: Iterable[Boot], end: float) -> None:
        events: dict[int, list[tuple[float, str]]] = defaultdict(list)
        booted: dict[int, list[float]] = defaultdict(list)
        for boot in boots:
            events[boot.cell].append((boot.at, "starting"))
            booted[boot.cell].append(boot.at)
        for change in changes:
            if change.direction in _BESIDE:
                continue
            events[change.cell].append((change.started_at, _DURING.get(change.direction, change.direction)))
            superseded = any(change.started_at < at <= change.ended_at for at in booted[change.cell])
            if change.result and not superseded:
                after = _AFTER.get(change.direction, "rollout") if change.result == "done" else _FAILED[change.result]
                events[change.cell].append((change.ended_at, after))
        self.spans = {cell: _spans(cell, sorted(found, key=_moment), end) for cell, found in sorted(events.items())}
        self._begins = {cell: [span.begin for span in spans] for cell, spans in self.spans.items()}

    def of(self, cell: int, *roles: str) -> list[Span]:
        """The spans of a cell in these roles, in order."""
        return [span for span in self.spans.get(cell, []) if span.role in roles]

    def at(self, moment: float) -> dict[int, str]:
        """Role of every cell that has booted by then; a role holds from its first moment on."""
        return self._found({cell: bisect_right(begins, moment) for cell, begins in self._begins.items()})

    def before(self, moment: float) -> dict[int, str]:
        """Role of every cell just before then."""
        return self._found({cell: bisect_left(begins, moment) for cell, begins in self._begins.items()})

    def _found(self, counts: Mapping[int, int]) -> dict[int, str]:
        return {cell: self.spans[cell][count - 1].role for cell, count in counts.items() if count}


def _moment(event: tuple[float, str]) -> float:
    return event[0]


def _spans(cell: int, events: list[tuple[float, str]], end: float) -> list[Span]:
    found: list[Span] = []
    closing = [*(begin for begin, _ in events[1:]), max(end, events[-1][0])]
    for index, ((begin, role), until) in enumerate(zip(events, closing, strict=True)):
        if until <= begin and index < len(events) - 1:
            continue  # overtaken at once; the last one stays, so that the newest role is known
        if found and found[-1].role == role and found[-1].end == begin:
            found[-1] = Span(cell, found[-1].begin, until, role)
        else:
            found.append(Span(cell, begin, until, role))
    return found


@dataclass(frozen=True)
class Entry:
    """One entry of the ledger, with what the policy saw in short: the counters, C_R and the topology.

    The counters and `capacity` are None, `topology` is empty where the entry carries no state.
    """

    token: str
    at: float
    kind: str
    cell: int | None
    reasons: tuple[str, ...]
    policy: str = ""
    direction: str | None = None
    together: tuple[int, ...] = ()
    bottleneck: str = ""
    expected_gain_seconds: float | None = None
    iteration_seconds: float | None = None
    migration_seconds: float | None = None
    realised_gain_seconds: float | None = None
    about: str = ""
    dispatched: int | None = None
    launched: int | None = None
    finished: int | None = None
    capacity: int | None = None
    topology: str = ""

    @property
    def cells(self) -> tuple[int, ...]:
        """Every cell it is about."""
        return () if self.cell is None else (self.cell, *self.together)

    @property
    def reason(self) -> str:
        return self.reasons[0] if self.reasons else ""

    @property
    def detail(self) -> str:
        return "; ".join(self.reasons[1:])

    @property
    def why(self) -> str:
        """Its reasons in words, with the bottleneck where one was predicted."""
        parts = [*self.reasons, f"bottleneck: {self.bottleneck}" if self.bottleneck else ""]
        return "; ".join(part for part in parts if part)

    @property
    def heading(self) -> str:
        """Where it sends its cells, or `slots`: what it shares out is processor slots. Empty when it moves nothing.
        Entries without a direction say it by their kind."""
        if self.kind not in ("move", "return"):
            return ""
        if self.cell is None:
            return "slots"
        return self.direction or ("to_training" if self.kind == "move" else "to_rollout")

    @property
    def waterlevel(self) -> int | None:
        """w = d - f, as the policy saw it."""
        if self.dispatched is None or self.finished is None:
            return None
        return self.dispatched - self.finished


def seen(state: Mapping[str, Any]) -> dict[str, Any]:
    """The short form of a policy's input, as fields of an `Entry`."""
    cells = state.get("cells")
    found: dict[str, Any] = {name: state.get(name) for name in ("dispatched", "launched", "finished")}
    if cells is not None:
        slots = sum(cell["slots"] for cell in cells if cell["serving"])
        found["capacity"] = state.get("standalone_slots", 0) + slots
        found["topology"] = roles_text({cell["index"]: cell["role"] for cell in cells})
    return found


def roles_text(roles: Mapping[int, str]) -> str:
    """Cells by role, in words: ``rollout 2-3,5; training 0-1``."""
    by_role: dict[str, list[int]] = defaultdict(list)
    for cell, role in sorted(roles.items()):
        by_role[role].append(cell)
    return "; ".join(f"{role} {_ranges(cells)}" for role, cells in sorted(by_role.items()))


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)

"""How faults are planted in the synthetic run: a register of them, and what they have in common."""

from collections.abc import Callable
from typing import Any

from infra.records import schema
from tests.infra.audit.recording import SyntheticRun, batch_id, execution_id

Fault = Callable[[SyntheticRun], None]
FAULTS: list[tuple[str, str, Fault]] = []
"""(code that must be found, what was done, the doing)."""

VICTIM = execution_id("first", 0, 0)
MOVED = execution_id("first", 3, 2)
BATCH = batch_id("first", 0)
LAST = batch_id("second", 0)


def plants(code: str) -> Callable[[Fault], Fault]:
    def register(fault: Fault) -> Fault:
        FAULTS.append((code, fault.__name__, fault))
        return fault

    return register


def call_of(run: SyntheticRun, execution: str, sequence: int) -> dict[str, Any]:
    return run.row(schema.calls, execution=execution, sequence=sequence)


def change_call(run: SyntheticRun, execution: str, sequence: int, **values: Any) -> None:
    run.change(schema.calls, {"execution": execution, "sequence": sequence}, **values)


def change_state(run: SyntheticRun, kind: str, cell: int = 0, **values: Any) -> None:
    entry = run.row(schema.ledger, kind=kind, cell=cell)
    run.change(schema.ledger, {"entry": entry["entry"]}, state=entry["state"] | values)


def change_member(run: SyntheticRun, group: str, member: int, **values: Any) -> None:
    members = run.row(schema.groups, group_id=group)["members"]
    members[member] |= values
    run.change(schema.groups, {"group_id": group}, members=members)


def hand_over(run: SyntheticRun, change: int, *, version: int = 2) -> dict[str, Any]:
    """A row that says that cell 1 took over the core, at the weights of this version, a second after its update."""
    update = run.row(schema.updates, version=version)
    row = {"change": change, "cell": 1, "version": version, "checksum": update["checksum"]}
    return row | {"named_at": update["committed_at"] + 1}

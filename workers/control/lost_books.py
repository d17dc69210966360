"""The books of a Scheduler that begins where another one's were lost: its workflow terminated, or Temporal's own
database gone. What it had given away stays given: counters go on, task positions and the names of bursts are not used
twice. Nothing is outstanding any more: a late report of an execution from before is unknown, and changes nothing.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, func, select

from infra.checkpoints.manifest import read
from infra.records.schema import executions
from workflows.accounts import AccountsState
from workflows.messages.errors import CheckpointUnusable

_log = logging.getLogger(__name__)
_POSITION = "position/"


def recorded_books(engine: Engine, checkpoints: Path, checkpoint: str) -> tuple[AccountsState, dict[str, int]]:
    """Accounts and task positions from the records and the last committed checkpoint (empty: there is none yet)."""
    table = executions.c
    query = select(table.burst, func.max(table.group_index), func.count()).group_by(table.burst)
    with engine.connect() as connection:
        bursts = {name: (last + 1, count) for name, last, count in connection.execute(query)}
    return books_after(bursts, _counters(checkpoints, checkpoint))


def books_after(
    bursts: Mapping[str, tuple[int, int]], counters: Mapping[str, Any]
) -> tuple[AccountsState, dict[str, int]]:
    """`bursts`: the next group and the executions on record of each; `counters`: those of the last update."""
    count = max(int(counters.get("dispatched", 0)), sum(executions for _, executions in bursts.values()))
    accounts = AccountsState(
        dispatched=count,
        launched=count,
        finished=count,
        next_group={name: following for name, (following, _) in sorted(bursts.items())},
    )
    positions = {name.removeprefix(_POSITION): value for name, value in counters.items() if name.startswith(_POSITION)}
    return accounts, positions


def _counters(checkpoints: Path, name: str) -> Mapping[str, Any]:
    try:
        return read(checkpoints / name).meta.counters if name else {}
    except (CheckpointUnusable, OSError) as error:
        _log.warning("no task positions from before, should the scheduler begin anew: %s", error)
        return {}

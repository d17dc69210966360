"""How long a decision takes: every policy on a full run's books, and the throughput plan at pool sizes.

The time of a decision includes what the scheduler does for it at every event: the cells' views are taken from its cell
table and the counters from its accounts, in which thousands of real executions are dispatched and launched.
"""

import statistics
import time
from collections.abc import Callable

from infra.simulator.decisions import POLICIES, PlanCase, decision
from workflows.accounts import Accounts, AccountsState
from workflows.cell_table import CellEntry, CellTable
from workflows.messages.base import Message
from workflows.messages.burst import BurstSpec
from workflows.messages.fleet import CellRole, CellSpec

VERSION = 1


class Timing(Message):
    """Milliseconds of one call: the median and the 99th percentile."""

    median_ms: float
    p99_ms: float
    calls: int


class DecideReport(Message):
    """`plans`: GPUs -> the throughput policy's whole decision; `searches`: its search from every component."""

    cells: int
    executions: int
    decisions: dict[str, Timing]
    plans: dict[int, Timing]
    searches: dict[int, Timing]


def measure(cells: int, executions: int, gpus: tuple[int, ...], calls: int) -> DecideReport:
    """Time everything, one call after the other."""
    books, table = full_books(executions), full_table(cells)

    def ask(policy: str) -> object:
        views = table.views(VERSION)
        return decision(policy, views, books.dispatched, books.launched, books.finished, books.ready_unassigned)

    cases = {count: PlanCase(count) for count in gpus}
    return DecideReport(
        cells=cells,
        executions=executions,
        decisions={policy: timed(lambda policy=policy: ask(policy), calls) for policy in POLICIES},
        plans={count: timed(case.plan, calls) for count, case in cases.items()},
        searches={count: timed(case.search, calls) for count, case in cases.items()},
    )


def full_books(executions: int) -> Accounts:
    """Accounts with so many executions dispatched, most of them running, the rest queued."""
    size = 16
    groups = -(-executions // size)
    books = Accounts("bench", AccountsState())
    spec = BurstSpec(run="bench", name="b", tasks="t", groups_per_step=groups, executions_per_group=size, steps=1)
    books.dispatch(spec, ["task"] * groups, VERSION)
    books.launch(executions * 3 // 4, 0.0)
    return books


def full_table(cells: int) -> CellTable:
    """A quarter of the cells trains, the others serve."""
    return CellTable(
        tuple(
            CellEntry(
                spec=CellSpec(index=index, slots=200),
                role=CellRole.TRAINING if index < cells // 4 else CellRole.ROLLOUT,
                version=VERSION,
            )
            for index in range(cells)
        )
    )


def timed(action: Callable[[], object], calls: int) -> Timing:
    """Time `action`, called `calls` times after a short warm-up."""
    for _ in range(max(3, calls // 20)):
        action()
    taken: list[float] = []
    for _ in range(calls):
        start = time.perf_counter()
        action()
        taken.append((time.perf_counter() - start) * 1000)
    taken.sort()
    worst = taken[min(calls - 1, int(0.99 * calls))]
    return Timing(median_ms=round(statistics.median(taken), 4), p99_ms=round(worst, 4), calls=calls)

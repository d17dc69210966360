"""Watching a run live: one look a second at the scheduler's own view, kept as a series and shown on the terminal."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from sqlalchemy import Engine, func, select
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from infra.records.cores import core_on_record
from infra.records.schema import batches, executions
from workflows.messages import ids

LOOK_SECONDS = 1.0
PLAIN_SECONDS = 10.0
"""Between lines when the output is no terminal."""

_COLORS = {"rollout": "cyan", "training": "green", "to_training": "yellow", "to_rollout": "yellow", "starting": "blue"}


@dataclass(frozen=True)
class Look:
    """What was seen at one moment. `at`: seconds since the epoch; roles by cell index; `core`: the cell that is it.

    `late`: reclaimed cells that are not gone at their deadline, and what they hang at.
    """

    at: float
    waterlevel: int
    capacity: int
    queued: int
    running: int
    ready: int
    roles: dict[int, str]
    version: int
    mean_reward: float | None
    core: int = 0
    late: dict[int, str] = field(default_factory=dict)


@dataclass
class Watch:
    """The series of looks, and the line that says what is going on."""

    client: Client
    records: Engine
    run: str
    console: Console
    looks: list[Look] = field(default_factory=list)
    stage: str = "starting"

    @asynccontextmanager
    async def showing(self) -> AsyncIterator["Watch"]:
        """Look once a second for as long as the context lasts."""
        with Live(console=self.console, refresh_per_second=4, transient=True) as live:
            task = asyncio.create_task(self._watch(live))
            try:
                yield self
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _watch(self, live: Live) -> None:
        said = 0.0
        while True:
            look = await self._look()
            if look is not None:
                self.looks.append(look)
                if self.console.is_terminal:
                    live.update(self._picture(look))
                elif look.at - said >= PLAIN_SECONDS:
                    said = look.at
                    self.console.print(self._line(look), highlight=False)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> Look | None:
        try:
            handle = self.client.get_workflow_handle(ids.scheduler_id(self.run))
            state: dict[str, Any] = await handle.query("policy_state", rpc_timeout=timedelta(seconds=3))
            elastic: dict[str, Any] = await handle.query("elasticity", rpc_timeout=timedelta(seconds=3))
        except (RPCError, WorkflowQueryFailedError, TimeoutError):
            return None  # the scheduler's worker is busy or restarting; the next look tells
        version, reward, core = await asyncio.to_thread(self._progress)
        return Look(
            at=time.time(),
            waterlevel=state["dispatched"] - state["finished"],
            capacity=sum(cell["slots"] for cell in state["cells"] if cell["serving"]),
            queued=state["dispatched"] - state["launched"],
            running=state["launched"] - state["finished"],
            ready=state["ready_unassigned"],
            roles={cell["index"]: cell["role"] for cell in sorted(state["cells"], key=lambda cell: cell["index"])},
            version=version,
            mean_reward=reward,
            core=core,
            late={int(cell): why for cell, why in elastic["late"].items()},
        )

    def _progress(self) -> tuple[int, float | None, int]:
        """Committed version, the mean reward of the last 64 scored training executions, and which cell is the core."""
        with self.records.connect() as connection:
            version = connection.scalar(select(func.max(batches.c.version_after))) or 0
            recent = (
                select(executions.c.reward)
                .where(executions.c.purpose == "train", executions.c.reward.is_not(None))
                .order_by(executions.c.ended_at.desc())
                .limit(64)
                .subquery()
            )
            mean = connection.scalar(select(func.avg(recent.c.reward)))
        return int(version), None if mean is None else float(mean), core_on_record(self.records)[0]

    def _line(self, look: Look) -> str:
        reward = "-" if look.mean_reward is None else f"{look.mean_reward:.2f}"
        roles = " ".join(f"{index}:{role}{'*' if index == look.core else ''}" for index, role in look.roles.items())
        late = "".join(f"  LATE {line}" for line in _late(look))
        return (
            f"{self.stage:28} w {look.waterlevel:3} of {look.capacity:3}  queued {look.queued:3}  running "
            f"{look.running:3}  ready {look.ready:2}  v{look.version}  reward {reward}  cells {roles}{late}"
        )

    def _picture(self, look: Look) -> Group:
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        level = f"{look.waterlevel} of capacity {look.capacity}"
        table.add_row("waterlevel", level, _bar(look.waterlevel, look.capacity))
        table.add_row("executions", f"{look.queued} queued, {look.running} running", "")
        table.add_row("ready groups", str(look.ready), "")
        reward = "-" if look.mean_reward is None else f"{look.mean_reward:.2f} over the last 64"
        table.add_row("weights", f"version {look.version}", f"reward {reward}")
        cells = Text("cells        ")
        for index, role in look.roles.items():
            cells.append(f"{f'core (cell {index})' if index == look.core else f'satellite {index}'}: ", style="dim")
            cells.append(f"{role}   ", style=_COLORS.get(role, "red"))
        late = [Text(f"late: {line}", style="red") for line in _late(look)]
        return Group(Text(self.stage, style="bold"), table, cells, *late)


def _late(look: Look) -> list[str]:
    return [f"cell {cell}: {why}" for cell, why in look.late.items()]


def _bar(value: int, limit: int, width: int = 32) -> Text:
    full = min(width, round(width * value / limit)) if limit else 0
    return Text("█" * full + "░" * (width - full), style="cyan" if value <= limit else "magenta")

"""A local stack: every component a process of its own, watched until the end.

    async with LocalStack(fleet, run_dir) as stack:
        await stack.ready()
        await stack.client.start_workflow(...)

Entering starts everything and waits for Temporal alone; leaving stops everything that was started, harnesses
included, and nothing else. Enter it in a thread that outlives it: components are tied to it and end with it.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import httpx2
from sqlalchemy import Engine
from temporalio.client import Client

from infra.code import Code, what_changed
from infra.processes.identity import ProcessIdentity
from infra.processes.tree import end_all
from infra.records.boots import open_doors
from infra.records.database import open_database
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest
from infra.temporal.client import connect
from infra.temporal.server import require_search_attributes
from workers.supervisor import growth
from workers.supervisor.components import (
    CELL_STAGE,
    HARNESS_STAGE,
    SERVER_STAGE,
    STOPPED_TOGETHER,
    ComponentSpec,
    ProbeContext,
    cell_worker,
    fleet_components,
)
from workers.supervisor.journal import Journal, StackEvent
from workers.supervisor.memory import PeakMemory
from workers.supervisor.process import SupervisedProcess
from workers.supervisor.run_folder import CHECKOUT, FolderLock, open_manifest, remove_published_weights
from workers.supervisor.tree import (
    RUN_MARKER,
    component_processes,
    harness_processes,
    run_processes,
    tied_to_parent,
)
from workflows.messages.errors import Transient
from workflows.messages.fleet import CellSpec
from workflows.messages.ids import engine_id

READY_SECONDS = 180.0
_TEMPORAL_SECONDS = 180.0
_PROBE_PAUSE_SECONDS = 0.2
_CRASH_LOOP_DEATHS = 4
_LEFT_OVER_GRACE_SECONDS = 5.0
_CANCEL_TRIES, _CANCEL_PAUSE_SECONDS = 10, 1.0


class LocalStack:
    """`fleet` may be None where a run goes on. `components` replaces the fleet's own (tests, other topologies).

    Without `watch_memory` there is no peak: looking costs a twentieth of a core with many processes.
    """

    manifest: RunManifest
    client: Client
    records: Engine

    def __init__(
        self,
        fleet: Fleet | None,
        run_dir: Path,
        *,
        components: Callable[[RunManifest], Sequence[ComponentSpec]] = fleet_components,
        watch_memory: bool = True,
        on_event: Callable[[StackEvent], None] | None = None,
        root: Path = CHECKOUT,
    ) -> None:
        self.run_dir = run_dir.resolve()
        self._fleet, self._components, self._on_event, self._root = fleet, components, on_event, root
        self._watch_memory = watch_memory
        self._processes: dict[str, SupervisedProcess] = {}
        self._held = ExitStack()
        self._memory = PeakMemory(self._tree)
        self._tasks: list[asyncio.Task[None]] = []
        self._unready: set[str] = set()

    async def __aenter__(self) -> "LocalStack":
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def peak_pss_bytes(self) -> int:
        """Largest sum of proportional set sizes seen, this process and everything of the run."""
        return self._memory.peak_bytes

    def processes(self) -> dict[str, int | None]:
        """Component -> pid; None while it is dead and waits for its restart."""
        return {name: process.pid for name, process in self._processes.items()}

    def restarts(self, name: str) -> int:
        return self._processes[name].restarts

    def log(self, name: str) -> Path:
        return self._processes[name].log

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal one component (it will be restarted); returns the pid. Raises ProcessLookupError while it is dead."""
        return self._processes[name].kill(number)

    async def ready(self, names: Sequence[str] = (), *, timeout_seconds: float = READY_SECONDS) -> None:
        """Wait until the components (all without `names`) work, as their present processes show.

        Raises Transient, naming the log file and its last lines, when one dies again and again or the time is up.
        """
        chosen = [self._processes[name] for name in names] or list(self._processes.values())
        deadline = time.monotonic() + timeout_seconds
        async with httpx2.AsyncClient(timeout=5.0, trust_env=False) as http:
            waiting = [asyncio.create_task(self._one_ready(process, http, deadline)) for process in chosen]
            try:
                await asyncio.gather(*waiting)
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)

    @property
    def has_cells(self) -> bool:
        return any(process.spec.stage == CELL_STAGE for process in self._processes.values())

    def unready(self) -> list[str]:
        """Components that `ready` still waits for."""
        return sorted(self._unready)

    async def serving(self, *, timeout_seconds: float = READY_SECONDS) -> bool:
        """Wait until the proxy may send requests to an engine of a present boot: a burst started then is served.

        False when the time is up, or at once when no cell belongs to this stack.
        """
        deadline = time.monotonic() + timeout_seconds
        while self.has_cells:
            if await asyncio.to_thread(open_doors, self.records):
                return True
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_PROBE_PAUSE_SECONDS)
        return False

    async def restarted(self, name: str, old_pid: int, *, timeout_seconds: float = READY_SECONDS) -> int:
        """Wait until another process than `old_pid` works as component `name`; returns its pid."""
        process = self._processes[name]
        deadline = time.monotonic() + timeout_seconds
        while process.pid in (None, old_pid):
            if time.monotonic() > deadline:
                raise Transient(f"{name} was not restarted within {timeout_seconds:g} s")
            await asyncio.sleep(_PROBE_PAUSE_SECONDS)
        await self.ready([name], timeout_seconds=max(1.0, deadline - time.monotonic()))
        return process.pid or old_pid

    async def stop(self) -> None:
        """Stop everything, harnesses first and Temporal last; safe to call again."""
        tasks, self._tasks = set(self._tasks), []
        for _ in range(_CANCEL_TRIES):
            for task in tasks:
                task.cancel()
            if not tasks:
                break
            tasks = (await asyncio.wait(tasks, timeout=_CANCEL_PAUSE_SECONDS))[1]
        for task in tasks:
            self._journal.write(StackEvent("stack", "died", f"{task.get_name()} does not end and is left behind"))
        for stages in STOPPED_TOGETHER:
            group = [process for process in self._processes.values() if process.spec.stage in stages]
            if group:
                bound = max(process.spec.grace_seconds for process in group)
                names = ", ".join(process.spec.name for process in group)
                self._journal.write(StackEvent("stack", "stopping", f"{names}: {bound:g} s at most"))
            await asyncio.gather(*(process.stop() for process in group))
            if HARNESS_STAGE in stages and group:
                await self._end(harness_processes)
        if self._processes:
            await self._end(run_processes)
            remove_published_weights(self.manifest)
            self._processes.clear()
        self._held.close()

    async def _start(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._held.enter_context(FolderLock(self.run_dir))
        # A supervisor that was killed may have left components behind; harnesses are kept for their new host.
        await self._end(component_processes)
        self.manifest = open_manifest(self._fleet, self.run_dir, root=self._root)
        self.records = open_database(self.manifest.database_url, create=True)
        self._held.callback(self.records.dispose)
        self._journal = Journal(self.run_dir / "supervisor.jsonl", self._on_event)
        await self._note_code()
        specs = sorted(self._components(self.manifest), key=lambda spec: spec.stage)
        # Looked up before anything is started: a missing C library must not leave half a stack.
        self._tie = tied_to_parent()
        self._processes = {spec.name: self._process(spec) for spec in specs}
        if self._watch_memory:
            self._tasks.append(asyncio.create_task(self._memory.run(), name="peak memory"))
        first = [process for process in self._processes.values() if process.spec.stage == SERVER_STAGE]
        for process in first:
            await process.start()
        try:
            self.client = await connect(self.manifest, timeout_seconds=_TEMPORAL_SECONDS)
            await require_search_attributes(self.client)
        except Transient as error:
            logs = ", ".join(f"{process.log}:\n{process.log_tail()}" for process in first)
            raise Transient(f"{error}\n{logs}") from error
        for process in self._processes.values():
            if process not in first:
                await process.start()
        if self._components is fleet_components:
            self._tasks.append(asyncio.create_task(self._follow(), name="follow the fleet"))

    async def _note_code(self) -> None:
        """Say when a run goes on with other code than recorded it until now; `run.json` has the code from here on."""
        code = await asyncio.to_thread(Code.here)
        if line := what_changed(self.manifest.code, code):
            self._journal.write(StackEvent("code", "changed", line))
        self._remember(self.manifest.model_copy(update={"code": code}))

    def _process(self, spec: ComponentSpec) -> SupervisedProcess:
        return SupervisedProcess(
            spec,
            folder=self.manifest.logs,
            cwd=self._root,
            environment=self._environment(),
            journal=self._journal,
            before_exec=self._tie,
        )

    async def _follow(self) -> None:
        """Start the workers of cells that were offered to the run, stop those of cells that have left it."""
        while True:
            await asyncio.sleep(growth.LOOK_SECONDS)
            wanted = await growth.cells_now(self.client, self.manifest.run)
            if wanted is None:
                continue
            try:
                await self._follow_to(wanted)
            except (OSError, ValueError, Transient) as error:  # tried again at the next look
                self._journal.write(StackEvent("fleet", "died", str(error)))

    async def _follow_to(self, wanted: Sequence[CellSpec]) -> None:
        for cell in wanted:
            if engine_id(cell.index) in self._processes and growth.offered_anew(self.manifest, cell):
                await self._remove(cell.index)
            if engine_id(cell.index) not in self._processes:
                await self._add(cell)
        for index in sorted({cell.index for cell in self.manifest.fleet.cells} - {cell.index for cell in wanted}):
            await self._remove(index)

    async def _add(self, cell: CellSpec) -> None:
        self._remember(growth.with_cell(self.manifest, cell))
        process = self._process(cell_worker(self.manifest, cell.index))
        await process.start()
        self._processes[engine_id(cell.index)] = process

    async def _remove(self, index: int) -> None:
        process = self._processes.get(engine_id(index))
        if process is not None:
            self._remember(growth.without_cell(self.manifest, index))
            await process.stop()
            del self._processes[engine_id(index)]

    def _remember(self, manifest: RunManifest) -> None:
        self.manifest = manifest
        manifest.save()

    async def _end(self, which: Callable[[Path], list[ProcessIdentity]]) -> None:
        """End the processes of the run that `which` finds."""
        await asyncio.to_thread(end_all, lambda: which(self.run_dir), grace_seconds=_LEFT_OVER_GRACE_SECONDS)

    async def _one_ready(self, process: SupervisedProcess, http: httpx2.AsyncClient, deadline: float) -> None:
        name = process.spec.name
        self._unready.add(name)
        try:
            await self._until_ready(process, http, deadline)
        finally:
            self._unready.discard(name)

    async def _until_ready(self, process: SupervisedProcess, http: httpx2.AsyncClient, deadline: float) -> None:
        name = process.spec.name
        while True:
            if process.pid is not None:
                context = ProbeContext(self.client, self.records, http, process.started_at)
                if await process.spec.ready(context):
                    self._journal.write(StackEvent(name, "ready", pid=process.pid))
                    return
            if process.deaths >= _CRASH_LOOP_DEATHS:
                raise Transient(f"{name} died {process.deaths} times; {process.log} ends:\n{process.log_tail()}")
            if time.monotonic() > deadline:
                raise Transient(f"{name} is not ready in time; {process.log} ends:\n{process.log_tail()}")
            await asyncio.sleep(_PROBE_PAUSE_SECONDS)

    def _environment(self) -> dict[str, str]:
        path = os.environ.get("PYTHONPATH")
        return {
            **os.environ,
            "PYTHONPATH": f"{self._root}{os.pathsep}{path}" if path else str(self._root),
            "PYTHONUNBUFFERED": "1",
            RUN_MARKER: str(self.run_dir),
        }

    def _tree(self) -> list[ProcessIdentity]:
        own = ProcessIdentity.of(os.getpid())
        return run_processes(self.run_dir) + ([own] if own else [])

"""One execution on the harness host: prepare its workspace, run its harness once, close it once.

Invariants: the secret token is in no payload; tests are not in the workspace; a harness outlives the worker, and a
retried activity takes up the living one; after its first model call an execution is never run again from scratch;
when `run_harness` returns no process of the execution is alive.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from temporalio import activity

from activities.endings import harness_run, without_secret
from activities.heartbeats import Heartbeat
from activities.slots import Gate
from harness_adapters.protocol import HarnessAdapter, HarnessOutcome, LaunchContext
from harness_adapters.registry import adapter_named
from infra.processes.isolation import OPEN, Isolation
from infra.processes.job import Job, Result, write_atomically
from infra.processes.launch import Runners, end_marked
from infra.processes.limits import ProcessLimits
from infra.processes.sandbox import Sandbox
from infra.records.executions import ExecutionRecords, ExecutionRow, execution_of
from infra.tasks import Task, load_task
from infra.workspaces import ExecutionFolder, copy_tree, remove_tree, token_sha256
from workflows.messages.errors import Fenced, InvalidTask, StillHeld
from workflows.messages.execution import (
    EndReason,
    ExecutionSpec,
    FinishExecution,
    HarnessRun,
    PreparedWorkspace,
)
from workflows.messages.routing import RegisterExecution

_log = logging.getLogger(__name__)
MOST_STARTS = 3
"""How often a harness is started that was lost before its first model call."""


class ProxyAdmin(Protocol):
    """What the harness host asks of the proxy's control API. Both are idempotent and raise Transient."""

    async def register_execution(self, registration: RegisterExecution) -> None: ...

    async def end_execution(self, execution: str) -> None: ...


class Beat(Protocol):
    """Told at every look at a running harness; knows whether a cancellation is meant for it."""

    def __call__(self) -> None: ...

    def must_stop(self) -> bool: ...


@dataclass(frozen=True)
class HarnessHost:
    """Where this host keeps things and whom it talks to. `proxy_url`: the model endpoint, no slash at the end.

    `isolation`: what holds for harnesses here; `hidden`: folders that none of them may read; `context_tokens`: the
    policy's context.
    """

    workspaces: Path
    harness_root: Path
    proxy_url: str
    records: ExecutionRecords
    runners: Runners
    proxy: ProxyAdmin
    keep_workspaces: bool = True
    isolation: Isolation = OPEN
    hidden: tuple[Path, ...] = ()
    context_tokens: int = 131_072
    load: Callable[[Path], Task] = load_task
    adapter: Callable[[str], HarnessAdapter] = adapter_named

    @property
    def proxy_address(self) -> tuple[str, int]:
        url = urlsplit(self.proxy_url)
        return url.hostname or "127.0.0.1", url.port or 80

    @property
    def endpoint(self) -> str:
        """The proxy as harnesses reach it: in a network of their own it is behind a door on their loopback."""
        return f"http://127.0.0.1:{self.proxy_address[1]}" if self.isolation.network else self.proxy_url


class HarnessActivities:
    """`prepare_workspace` and `finish_execution` belong on the harness queue, `run_harness` on the watch queue."""

    def __init__(self, host: HarnessHost, gate: Gate | None = None) -> None:
        self._host, self._gate = host, gate or Gate()

    @activity.defn(name="prepare_workspace")
    async def prepare_workspace(self, spec: ExecutionSpec) -> PreparedWorkspace:
        """Workspace, token, row and registration of an execution; a retry finds what is there.

        Raises InvalidTask, InvalidSpec and HarnessUnusable for what can never run, Fenced for a closed execution.
        """
        return await self.prepare(spec)

    async def prepare(self, spec: ExecutionSpec) -> PreparedWorkspace:
        """`prepare_workspace` outside an activity."""
        host, folder = self._host, ExecutionFolder.of(self._host.workspaces, spec)
        host.adapter(spec.harness.name).check(spec.harness, host.harness_root)
        token = await asyncio.to_thread(self._lay_out, spec, folder)
        row = await asyncio.to_thread(
            host.records.open, spec, token_sha256=token_sha256(token), workspace=str(folder.app)
        )
        await self._register(spec, row.token_sha256, row.attempt)
        return PreparedWorkspace(workspace=str(folder.app), prepared=True)

    def _lay_out(self, spec: ExecutionSpec, folder: ExecutionFolder) -> str:
        task = self._host.load(Path(spec.task))
        if task.container:
            raise InvalidTask(task.container, field="environment")
        folder.make()
        if not folder.app.exists():
            copy_tree(task.environment, folder.app)
        write_atomically(folder.spec, spec.model_dump_json())
        return folder.mint_token()

    async def _register(self, spec: ExecutionSpec, sha256: str, attempt: int) -> None:
        await self._host.proxy.register_execution(
            RegisterExecution(
                execution=execution_of(spec),
                run=spec.run,
                token_sha256=sha256,
                attempt=attempt,
                seed=spec.seed,
                sampling=spec.sampling,
                call_limit=spec.limits.model_calls,
                harness=spec.harness.name,
            )
        )

    @activity.defn(name="run_harness")
    async def run_harness(self, spec: ExecutionSpec) -> HarnessRun:
        """Run the harness to its end, or follow the one that is running. Cancellation ends it: EndReason.CANCELLED.

        Raises Fenced when the execution was never prepared or is closed, StillHeld if its processes cannot be ended.
        """
        async with self._gate():
            return await self.run(spec, Heartbeat())

    async def run(self, spec: ExecutionSpec, beat: Beat) -> HarnessRun:
        """`run_harness` outside an activity."""
        folder = ExecutionFolder.of(self._host.workspaces, spec)
        try:
            result = await self._run_to_end(spec, folder, beat)
        except asyncio.CancelledError:
            if not beat.must_stop():
                raise  # another attempt, or another worker, takes up the living harness
            return await self._cancel(spec, folder)
        # What the proxy still writes is durable when this returns, so the count below is the last one.
        await self._host.proxy.end_execution(execution_of(spec))
        row = await self._row(spec)
        run = folder.run(row.attempt)
        outcome = await asyncio.to_thread(self._outcome, spec, folder, run, result) if result.end == "exited" else None
        reported = harness_run(result, outcome, model_calls=row.model_calls, call_limit=spec.limits.model_calls)
        # A harness that quotes its endpoint in an error quotes its token: what is reported enters Temporal's history.
        token = folder.token.read_text() if folder.token.exists() else ""
        return reported.model_copy(update={"detail": without_secret(reported.detail, token)})

    async def _run_to_end(self, spec: ExecutionSpec, folder: ExecutionFolder, beat: Beat) -> Result:
        while True:
            row = await self._row(spec)
            if row.closed_at is not None:
                raise Fenced(f"{row.execution} is closed ({row.end_reason})")
            run = folder.run(row.attempt)
            if (run / "job.json").exists():
                self._host.runners.resume(run)
            else:
                self._host.runners.start(run, self._job(spec, folder))
            result = await self._host.runners.follow(run, beat=beat)
            if result.end != "runner_lost":
                return result
            if await asyncio.to_thread(end_marked, str(folder.root)):
                raise StillHeld("processes of a lost harness cannot be ended")
            row = await self._row(spec)
            if row.first_call_at is not None or row.attempt >= MOST_STARTS:
                result.save(run)  # what survives is scored; no later attempt starts it again
                return result
            await self._start_over(spec, folder)

    async def _start_over(self, spec: ExecutionSpec, folder: ExecutionFolder) -> None:
        """Nothing was asked of the model yet: the execution may begin again, in a fresh workspace."""
        task = self._host.load(Path(spec.task))
        for stale in (folder.app, folder.home, folder.temporary):
            await asyncio.to_thread(remove_tree, stale)
        folder.make()
        await asyncio.to_thread(copy_tree, task.environment, folder.app)
        attempt = await asyncio.to_thread(self._host.records.next_attempt, execution_of(spec))
        await self._register(spec, token_sha256(folder.mint_token()), attempt)

    async def _cancel(self, spec: ExecutionSpec, folder: ExecutionFolder) -> HarnessRun:
        row = await self._row(spec)
        result = await self._host.runners.stop(
            folder.run(row.attempt), marker=str(folder.root), grace_seconds=spec.limits.grace_seconds
        )
        return HarnessRun(
            end=EndReason.CANCELLED,
            exit_code=result.exit_code,
            seconds=result.seconds,
            model_calls=row.model_calls,
            detail="cancelled",
        )

    async def _row(self, spec: ExecutionSpec) -> ExecutionRow:
        row = await asyncio.to_thread(self._host.records.get, execution_of(spec))
        if row is None:
            raise Fenced(f"{execution_of(spec)} was never prepared")
        return row

    def _context(self, spec: ExecutionSpec, folder: ExecutionFolder, task: Task) -> LaunchContext:
        token = folder.mint_token()
        return LaunchContext(
            execution=execution_of(spec),
            instruction=task.instruction,
            workspace=folder.app,
            home=folder.home,
            endpoint=f"{self._host.endpoint}/x/{token}",
            token=token,
            context_tokens=self._host.context_tokens,
            output_tokens=spec.sampling.max_call_tokens,
            harness_root=self._host.harness_root,
            choice=spec.harness,
        )

    def _job(self, spec: ExecutionSpec, folder: ExecutionFolder) -> Job:
        """The launch plan as a job; its files are written into the home."""
        task, limits = self._host.load(Path(spec.task)), spec.limits
        plan = self._host.adapter(spec.harness.name).launch(self._context(spec, folder, task))
        for name, text in plan.files.items():
            folder.write_home(name, text)
        return Job(
            argv=plan.argv,
            env={"TMPDIR": str(folder.temporary), **plan.environment},
            cwd=str(plan.cwd),
            marker=str(folder.root),
            stdin=str(folder.home / plan.stdin) if plan.stdin else "",
            sandbox=self._sandbox(folder, task),
            limits=ProcessLimits(
                wall_seconds=min(limits.wall_seconds, task.agent_seconds or limits.wall_seconds),
                grace_seconds=limits.grace_seconds,
                output_bytes=limits.output_bytes,
                memory_bytes=limits.memory_bytes,
                processes=limits.processes,
                file_bytes=limits.file_bytes,
            ),
        )

    def _sandbox(self, folder: ExecutionFolder, task: Task) -> Sandbox | None:
        """Its own folders, and neither the tests nor anything of another execution; the proxy alone to talk to."""
        host = self._host
        return host.isolation.sandbox(
            writable=(folder.app, folder.home, folder.temporary),
            temporary=folder.temporary,
            hidden=(*host.hidden, host.workspaces, task.folder),
            needed=(host.harness_root,),
            proxy=host.proxy_address,
        )

    def _outcome(self, spec: ExecutionSpec, folder: ExecutionFolder, run: Path, result: Result) -> HarnessOutcome:
        context = self._context(spec, folder, self._host.load(Path(spec.task)))
        context = context.model_copy(update={"stdout": run / "stdout.log"})
        try:
            return self._host.adapter(spec.harness.name).outcome(context, result.exit_code)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            # What a harness and its agent left is theirs; a retry would read the same for ever.
            _log.exception("the end of %s cannot be read", execution_of(spec))
            return HarnessOutcome(end=EndReason.CRASHED, detail=f"what it left cannot be read: {type(error).__name__}")

    @activity.defn(name="finish_execution")
    async def finish_execution(self, request: FinishExecution) -> None:
        """Close an execution for good: no further call, no process, its end on record, its token gone. Idempotent.

        Also for one that was cancelled or never prepared. Raises StillHeld if processes cannot be ended.
        """
        await self.finish(request)

    async def finish(self, request: FinishExecution) -> None:
        """`finish_execution` outside an activity: the host closes what a terminated workflow left behind."""
        spec, folder = request.spec, ExecutionFolder.of(self._host.workspaces, request.spec)
        await self._host.proxy.end_execution(execution_of(spec))
        await stop_everything(self._host.runners, folder, spec.limits.grace_seconds)
        await asyncio.to_thread(self._host.records.close, spec, request.run, request.evaluation)
        await asyncio.to_thread(folder.forget_secrets)
        if self._host.keep_workspaces:
            await asyncio.to_thread(folder.trim)
        else:
            await asyncio.to_thread(remove_tree, folder.root)


async def stop_everything(runners: Runners, folder: ExecutionFolder, grace_seconds: float) -> None:
    """End the harness and any grading of an execution. Raises StillHeld if processes survive."""
    survivors = 0
    for work in sorted(folder.private.glob("run-*")):
        await runners.stop(work, marker=str(folder.root), grace_seconds=grace_seconds)
    for work in sorted(folder.private.glob("grading-*")):
        await runners.stop(work, marker=str(work), grace_seconds=0.5)
        survivors += await asyncio.to_thread(end_marked, str(work))
    survivors += await asyncio.to_thread(end_marked, str(folder.root))
    if survivors:
        raise StillHeld(f"{survivors} processes of {folder.root} cannot be ended")

"""``python -m workers.bench.schedulers.host --run-dir DIR``: the harness host of a comparison.

It serves the same steps on the same queues with the same records, registers every execution at the proxy, and
processes what was recorded into trajectories as the real host does. Harnesses and graders are no processes: a plan is
carried out in the event loop, and the score is the plan's. It does not outlive its own death.
"""

import argparse
import asyncio
import hashlib
import json
import logging
import secrets
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

from temporalio import activity
from temporalio.worker import Worker

from activities.slots import SlotActivities
from activities.trajectories.processing import ProcessingActivities
from infra.objects import ObjectStore
from infra.records.boots import next_boot
from infra.records.database import open_database
from infra.records.executions import ExecutionRecords, execution_of
from infra.routing import RoutingClient
from infra.settings.run import RunManifest, Secrets, load_run
from infra.temporal import connect
from workers.bench.schedulers.harness import PlannedTurn, carry_out
from workers.registration import activities_of, interceptors
from workers.supervisor.components import ComponentSpec, fleet_components
from workflows.messages import ids
from workflows.messages.execution import (
    EndReason,
    Evaluation,
    ExecutionSpec,
    FinishExecution,
    HarnessRun,
    Outcome,
    PreparedWorkspace,
)
from workflows.messages.routing import RegisterExecution
from workflows.steps import Queue

PLAN_FILE = "plan.json"
SHORT_STEPS = 16


def components(manifest: RunManifest) -> list[ComponentSpec]:
    """A stack's components with this host in place of the real one."""
    argv = (sys.executable, "-m", "workers.bench.schedulers.host", "--run-dir", manifest.run_dir)
    return [
        ComponentSpec(spec.name, argv, spec.ready, spec.stage, spec.grace_seconds)
        if spec.name == "harness-host"
        else spec
        for spec in fleet_components(manifest)
    ]


class PlannedHarnesses:
    """The steps of an execution. `endpoint`: the proxy's public URL."""

    def __init__(self, records: ExecutionRecords, proxy: RoutingClient, endpoint: str) -> None:
        self._records, self._proxy, self._endpoint = records, proxy, endpoint
        self._tokens: dict[str, str] = {}

    @activity.defn(name="prepare_workspace")
    async def prepare_workspace(self, spec: ExecutionSpec) -> PreparedWorkspace:
        """A token, a row, and the proxy knows it."""
        execution = execution_of(spec)
        token = self._tokens.setdefault(execution, secrets.token_hex(32))
        sha256 = hashlib.sha256(token.encode()).hexdigest()
        row = await asyncio.to_thread(self._records.open, spec, token_sha256=sha256, workspace="")
        await self._proxy.register_execution(
            RegisterExecution(
                execution=execution,
                run=spec.run,
                token_sha256=sha256,
                attempt=row.attempt,
                seed=spec.seed,
                sampling=spec.sampling,
                call_limit=spec.limits.model_calls,
                harness=spec.harness.name,
            )
        )
        return PreparedWorkspace(workspace="", prepared=True)

    @activity.defn(name="run_harness")
    async def run_harness(self, spec: ExecutionSpec) -> HarnessRun:
        """Carry out the member's plan. A call that fails ends it as a crash."""
        began = time.monotonic()
        end, detail, made = EndReason.SUBMITTED, "", 0
        url = f"{self._endpoint}/x/{self._tokens[execution_of(spec)]}"
        try:
            made = await carry_out(url, read_plan(Path(spec.task), spec.member)[0])
        except ConnectionError as error:
            end, detail = EndReason.CRASHED, str(error)[:500]
        return HarnessRun(end=end, exit_code=0, seconds=time.monotonic() - began, model_calls=made, detail=detail)

    @activity.defn(name="evaluate_workspace")
    async def evaluate_workspace(self, spec: ExecutionSpec) -> Evaluation:
        """The plan's own score."""
        plan = (Path(spec.task) / PLAN_FILE).read_bytes()
        evaluation = Evaluation(
            outcome=Outcome.SCORED,
            reward=read_plan(Path(spec.task), spec.member)[1],
            detail="planned, not graded",
            evaluator=hashlib.sha256(plan).hexdigest(),
        )
        return await asyncio.to_thread(self._records.score, execution_of(spec), evaluation)

    @activity.defn(name="finish_execution")
    async def finish_execution(self, request: FinishExecution) -> None:
        """No further call, its end on record. Idempotent."""
        await self._proxy.end_execution(execution_of(request.spec))
        await asyncio.to_thread(self._records.close, request.spec, request.run, request.evaluation)
        self._tokens.pop(execution_of(request.spec), None)


def read_plan(task: Path, member: int) -> tuple[list[PlannedTurn], float]:
    """Turns and reward of a member of the group that `task` stands for."""
    planned = json.loads((task / PLAN_FILE).read_text())[member]
    return [tuple(turn) for turn in planned["turns"]], planned["reward"]


async def serve(run_dir: Path) -> None:
    """Serve the run until SIGTERM or SIGINT."""
    manifest = load_run(run_dir)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    engine = open_database(manifest.database_url, create=True)
    client = await connect(manifest)
    slots = SlotActivities(harness=manifest.fleet.harness_slots, evaluator=manifest.fleet.evaluator_slots or None)
    async with RoutingClient(manifest.proxy_admin_url, Secrets.of(run_dir).admin_key) as proxy:
        harnesses = PlannedHarnesses(ExecutionRecords(engine), proxy, manifest.proxy_url)
        processing = ProcessingActivities(engine, ObjectStore(manifest.object_store_url), proxy)
        next_boot(engine, "harness-host")
        short = Worker(
            client,
            task_queue=ids.harness_queue(manifest.run),
            activities=activities_of(Queue.HARNESS, harnesses, processing, slots),
            max_concurrent_activities=SHORT_STEPS,
            interceptors=interceptors(),
            graceful_shutdown_timeout=timedelta(seconds=2),
        )
        watch = Worker(
            client,
            task_queue=ids.watch_queue(manifest.run),
            activities=activities_of(Queue.WATCH, harnesses),
            max_concurrent_activities=manifest.fleet.harness_slots,
            interceptors=interceptors(),
        )
        async with short, watch:
            await stop.wait()
    engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description="Carries out the plans of a workload file.")
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    asyncio.run(serve(arguments.run_dir))


if __name__ == "__main__":
    main()

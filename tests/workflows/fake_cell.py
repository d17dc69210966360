"""The double of one boot of one cell worker: every step of a cell queue and of the stream, on plain sets."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from infra.temporal.failures import FailureInterceptor
from tests.workflows.faults import step
from tests.workflows.server import connect
from workers.registration import activities_of
from workflows.messages import ids
from workflows.messages.batch import (
    Accepted,
    CombineUpdate,
    JoinBatch,
    MicroStepDone,
    MicroStepTask,
    ReleaseBatch,
    SealBatch,
    Sealed,
    UpdateApplied,
)
from workflows.messages.cell_steps import (
    CellLease,
    CoreTaken,
    EngineVerified,
    KvPulled,
    LoadWeights,
    PullKv,
    RebootCell,
    RetainKv,
    TakeCore,
)
from workflows.messages.errors import ActorUnavailable, Fenced, VersionMismatch
from workflows.messages.fleet import CellWorkerUp
from workflows.messages.scheduling import Weights
from workflows.steps import Queue

if TYPE_CHECKING:
    from tests.workflows.world import FakeWorld


WEIGHTS_BYTES = 1000
BEAT = timedelta(seconds=1)
"""A heartbeat is sent on after that long at most, not when most of its limit is over: a busy machine would miss it."""


class FakeCell:
    """Rollout or training memory is held, never both. `accumulated`: (index, attempt) whose gradients are summed."""

    def __init__(self, world: "FakeWorld", index: int, boot: int) -> None:
        self.world, self.index, self.boot = world, index, boot
        self.queue = ids.cell_queue(world.run, index, boot)
        self.rollout_memory, self.training_memory = True, False
        self.engine: Weights | None = None
        self.batch: str | None = None
        self.accumulated: dict[int, int] = {}
        self.sealed = False
        self.held = False
        self.dead = False
        self.highest_lease = 0
        self.optimizer: Weights | None = world.committed if index == world.core else None
        self.stream: Worker | None = None
        self.stream_batch: str | None = None
        self.next_boot: asyncio.Task[FakeCell] | None = None
        self.serving: asyncio.Task[None] | None = None
        self.client: Client = world.client
        self.worker: Worker | None = None
        self.running: asyncio.Task[None] | None = None

    def _worker(self, queue: str, kind: Queue, room: int) -> Worker:
        return Worker(
            self.client,
            task_queue=queue,
            activities=activities_of(kind, self),
            interceptors=[FailureInterceptor()],
            max_concurrent_activities=room,
            max_heartbeat_throttle_interval=BEAT,
            graceful_shutdown_timeout=timedelta(seconds=60),
        )

    async def start(self) -> None:
        """Serve the boot's queue and say so, as a real cell worker does."""
        # A connection of its own, as its process would have: two workers of one client cannot share a stream's queue.
        self.client = await connect(self.world.client.service_client.config.target_host)
        self.worker = self._worker(self.queue, Queue.CELL, 8)
        self.running = asyncio.create_task(self.worker.run())
        up = CellWorkerUp(
            cell=self.index,
            boot_epoch=self.boot,
            queue=self.queue,
            engine_url=f"http://127.0.0.1:{9000 + self.index}",
            actor_url=f"http://127.0.0.1:{9100 + self.index}",
        )
        name = ids.cell_workflow_id(self.world.run, self.index)
        async with asyncio.timeout(60):
            while True:  # the workflow of a cell that was just offered may not exist yet
                try:
                    return await self.world.client.get_workflow_handle(name).signal("worker_up", up)
                except RPCError:
                    await asyncio.sleep(0.1)

    async def die(self) -> None:
        """As kill -9: what runs never answers, nothing new is taken."""
        self.dead = True
        await asyncio.sleep(0)
        self.endings = [asyncio.create_task(worker.shutdown()) for worker in (self.worker, self.stream) if worker]

    async def stop(self) -> None:
        await self._close_stream()
        if self.running is not None and self.worker is not None:
            if not self.worker.is_shutdown:
                await self.worker.shutdown()
            await asyncio.gather(self.running, return_exceptions=True)
        if self.serving is not None:
            await asyncio.gather(self.serving, return_exceptions=True)

    async def perform(self, name: str, work: Callable[..., Any], argument: Any) -> Any:
        """The frame of every step: log, misbehave as planned, heartbeat, work."""
        self.world.calls.append((name, argument))
        if self.dead:
            await self.world.faults.hang()
        lease = getattr(argument, "lease", None)
        if isinstance(lease, int) and name != "pull_kv":
            if lease < self.highest_lease:
                raise Fenced(f"lease {lease} is over; {self.highest_lease} holds the cell")
            self.highest_lease = lease
        fault = await self.world.faults.before(name, argument)
        if self.dead:
            await self.world.faults.hang()
        activity.heartbeat()
        result = await work(self, argument)
        if fault is not None and fault.after:
            await self.world.faults.strike(fault)
        return result

    # --- role changes

    @step
    async def retain_kv(self, request: RetainKv) -> None:
        pass

    @step
    async def pull_kv(self, request: PullKv) -> KvPulled:
        return KvPulled(arrived=request.executions, tokens=7 * len(request.executions), bytes=100)

    @step
    async def release_kv(self, request: CellLease) -> None:
        pass

    @step
    async def swap_weights(self, request: LoadWeights) -> EngineVerified:
        if self.world.doors.get(self.index) is not None:
            self.world.problem(f"cell {self.index}: weights swapped behind an open door")
        self.engine = request.weights
        return EngineVerified(weights=request.weights, bytes=WEIGHTS_BYTES)

    @step
    async def await_quiet(self, request: CellLease) -> None:
        if self.world.doors.get(self.index) is not None:
            raise ActorUnavailable("the door is still open")

    @step
    async def release_rollout(self, request: CellLease) -> None:
        self.rollout_memory, self.engine = False, None

    @step
    async def restore_training(self, request: CellLease) -> None:
        if self.rollout_memory:
            self.world.problem(f"cell {self.index}: training restored while rollout memory is held")
        self.training_memory = True

    @step
    async def leave_stream(self, request: CellLease) -> None:
        await self._close_stream()

    @step
    async def release_training(self, request: CellLease) -> None:
        self.batch, self.accumulated, self.training_memory = None, {}, False

    @step
    async def resume_rollout(self, request: CellLease) -> None:
        if self.training_memory:
            self.world.problem(f"cell {self.index}: rollout resumed while training memory is held")
        if not self.rollout_memory:
            self.rollout_memory, self.engine = True, None

    @step
    async def load_weights(self, request: LoadWeights) -> None:
        if not self.rollout_memory:
            raise VersionMismatch("no rollout memory to load into")
        self.engine = request.weights

    @step
    async def verify_engine(self, request: LoadWeights) -> EngineVerified:
        if self.engine != request.weights:
            raise VersionMismatch(f"the engine holds {self.engine}")
        return EngineVerified(weights=request.weights, bytes=WEIGHTS_BYTES)

    # --- the core

    @step
    async def take_core(self, request: TakeCore) -> CoreTaken:
        if request.weights.version > self.world.committed.version:
            raise VersionMismatch(f"{request.weights} is not what is on record")
        await self._close_stream()
        self.batch, self.accumulated, self.optimizer = None, {}, self.world.committed
        return CoreTaken(weights=self.world.committed, optimizer_steps=self.world.committed.version)

    @step
    async def lay_down_core(self, request: CellLease) -> None:
        await self._close_stream()
        self.batch, self.accumulated, self.optimizer = None, {}, None

    @step
    async def reboot_cell(self, request: RebootCell) -> None:
        self.next_boot = asyncio.create_task(self.world.boot(self.index))

    # --- batches

    @step
    async def join_batch(self, request: JoinBatch) -> None:
        if request.core == self.index:
            self.optimizer = request.weights
        elif self.optimizer is not None:
            self.world.problem(f"cell {self.index} joins with an optimizer, the core is {request.core}")
        if self.batch != request.batch:
            self.batch, self.accumulated = request.batch, {}
        self.sealed = False
        await self._open_stream(request.batch, request.in_flight_depth)

    @step
    async def run_micro_step(self, task: MicroStepTask) -> MicroStepDone:
        step = task.micro_step
        await self.world.client.get_workflow_handle(step.batch).signal("claimed", step.index)
        if self.batch != step.batch or self.sealed:
            raise Fenced(f"cell {self.index} is not open for {step.batch}")
        begun = time.monotonic()
        await self._compute()
        if self.dead:
            await self.world.faults.hang()
        if self.batch != step.batch:
            raise Fenced(f"cell {self.index} no longer sums for {step.batch}")
        self.accumulated[step.index] = max(task.emission, self.accumulated.get(step.index, 0))
        accepted = Accepted(
            index=step.index, attempt=self.accumulated[step.index], cell=self.index, boot_epoch=self.boot
        )
        return MicroStepDone(
            accepted=accepted, loss=0.5, metrics={"seconds": self.world.told_seconds(time.monotonic() - begun)}
        )

    @step
    async def seal_batch(self, request: SealBatch) -> Sealed:
        await self._close_stream()
        self.sealed = True
        return Sealed(
            cell=self.index,
            boot_epoch=self.boot,
            accumulated=tuple(sorted(self.accumulated.items())),
            weights=self.world.committed,
        )

    @step
    async def combine_update(self, request: CombineUpdate) -> UpdateApplied:
        if self.optimizer != request.weights:
            self.world.problem(f"{request.batch}: cell {self.index} combines with the optimizer of {self.optimizer}")
        summed: list[int] = []
        for account in request.participants:
            cell = self.world.cells[account.cell]
            if cell.boot != account.boot_epoch or cell.dead:
                raise ActorUnavailable(f"cell {account.cell} is gone")
            if tuple(sorted(cell.accumulated.items())) != account.accumulated:
                raise Fenced(f"cell {account.cell} no longer holds what the batch accepted")
            summed += cell.accumulated
        self.world.applied[request.batch] = sorted(summed)
        version = request.weights.version + 1
        weights = Weights(version=version, checksum=f"{request.batch}@{version}")
        self.optimizer, self.world.combined[request.batch] = weights, self.index
        return UpdateApplied(weights=weights, checkpoint=f"v{version}", grad_norm=1.0)

    @step
    async def release_batch(self, request: ReleaseBatch) -> None:
        await self._close_stream()
        if self.batch == request.batch:
            if not request.discard and self.world.commits.get(request.batch) is None:
                self.world.problem(f"{request.batch}: gradients released before the commit")
            if request.discard and request.batch in self.world.commits:
                self.world.problem(f"{request.batch}: a committed update was taken back")
            self.batch, self.accumulated = None, {}

    # --- the stream

    async def _open_stream(self, batch: str, depth: int) -> None:
        if self.stream is not None and self.stream_batch == batch:
            return
        await self._close_stream()
        self.stream_batch = batch
        self.stream = self._worker(ids.stream_queue(batch), Queue.STREAM, depth)
        self.serving = asyncio.create_task(self.stream.run())

    async def _close_stream(self) -> None:
        stream, self.stream, self.stream_batch = self.stream, None, None
        if stream is not None and not stream.is_shutdown:
            await stream.shutdown()

    async def _compute(self) -> None:
        """As long as a micro-step takes, or until the test lets it end."""
        begun = time.monotonic()
        activity.heartbeat()
        while time.monotonic() < begun + self.world.micro_step_seconds or not self.world.may_finish(self):
            self.held = True
            await asyncio.sleep(0.1)
            if self.dead:
                await self.world.faults.hang()
            activity.heartbeat()
        self.held = False

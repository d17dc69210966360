"""RoleTransition: one role change of one cell, step by step, each step an activity.

    to_training   close the door and reroute, retain KV, cancel and continue elsewhere, hand KV over, release rollout
                  memory (point of no return), restore training
    to_rollout    leave the stream, release training, resume rollout, load and verify the published weights, open
    publish       close the door, cut requests, load and verify, open; or, under `keep_kv`: close the door, pause what
                  runs in place, load and verify, go on, open (if that fails, as above)
    take_over     become the core: restore the last committed set; the cell's role stays what it is
    retire        what serves leaves rollout as above, what trains leaves the stream; nothing is taken up again
    boot          register the engine, load and verify, open

Before memory is released a failure rolls back: the door opens again (after a failed release with memory taken and
weights loaded again, for nobody knows how far it came). A reclaimed cell whose deadline has come does not roll back: it
is gone with its door closed. After memory is released the transition goes forward by its steps' retries. If that fails
for good, the way back is the cell's next boot, which this one is ended for (REBOOTED), or, where that may not be or
was tried before, the transition ends PARKED; the Cell then waits for an operator. A newer boot of the cell worker
supersedes the transition at once. KV hand-off is an optimisation: if it fails the destination recomputes.

Worker groups give and take by the verbs of `workflows.policy.worker_groups`; the report names what was performed.
"""

import asyncio
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ActivityError, is_cancelled_exception

from workflows import steps
from workflows.messages import ids
from workflows.messages.base import Message
from workflows.messages.cell_steps import CellLease, LoadWeights, PullKv, RebootCell, RetainKv, TakeCore
from workflows.messages.routing import CancelRequest, DoorChange, EngineEntry, HandoffDone, Move, RerouteRequest
from workflows.messages.transition import (
    Direction,
    StepTiming,
    TransitionFigures,
    TransitionReport,
    TransitionResult,
    TransitionSpec,
)
from workflows.parking import PHASE, call, failure_text, upsert
from workflows.policy.component import Component, Verb
from workflows.policy.worker_groups import WORKER_GROUPS, performed
from workflows.steps import Step

Argument = TypeVar("Argument", bound=Message)
Result = TypeVar("Result", bound=Message | None)

CELL = SearchAttributeKey.for_keyword("Cell")
ROLE = SearchAttributeKey.for_keyword("Role")

_STEPS = {step.name: step for step in steps.STEPS}

AWAIT_KV_SECONDS = 10.0
"""How long a continued request waits for its KV before it recomputes."""


class _StepFailed(Exception):
    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: {reason}")


class _Superseded(Exception):
    pass


@workflow.defn
class RoleTransition:
    """One role change; its result is its record."""

    @workflow.init
    def __init__(self, spec: TransitionSpec) -> None:
        self.spec = spec
        self.engine = ids.engine_id(spec.cell.index)
        self.control = ids.control_queue(spec.run)
        self.timings: list[StepTiming] = []
        self.done: list[str] = []
        self.figures = TransitionFigures()
        self.superseded = False
        self.releasing = self.memory_released = False

    @workflow.signal
    def supersede(self) -> None:
        """A newer boot of the cell worker exists: whatever this transition wanted is void."""
        self.superseded = True

    @workflow.run
    async def run(self, spec: TransitionSpec) -> TransitionReport:
        upsert(
            CELL.value_set(f"cell-{spec.cell.index}"),
            ROLE.value_set(spec.direction.value),
            PHASE.value_set("RUNNING"),
        )
        started = workflow.time()
        result, reason = TransitionResult.DONE, ""
        try:
            await self._go()
        except _Superseded:
            result, reason = TransitionResult.SUPERSEDED, "a newer boot of the cell worker"
        except _StepFailed as error:
            result, reason = await self._way_back(str(error))
        report = TransitionReport(
            transition=workflow.info().workflow_id,
            run=spec.run,
            cell=spec.cell.index,
            direction=spec.direction,
            result=result,
            started_at=started,
            ended_at=workflow.time(),
            steps=tuple(self.timings),
            verbs=performed(self.done),
            figures=self.figures,
            reason=reason[:1000],
        )
        upsert(PHASE.value_set(result.value.upper()))
        try:
            await call(steps.RECORD_TRANSITION, report, queue=self.control, activity_id="record-transition")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("the transition is not on record: %s", failure_text(error))
        return report

    async def _go(self) -> None:
        match self.spec.direction:
            case Direction.TO_TRAINING:
                await self._leave_rollout()
                await self._perform(Component.TRAINING, Verb.RESUME)
            case Direction.TO_ROLLOUT:
                await self._perform(Component.TRAINING, Verb.SUSPEND)
                await self._on_cell(steps.RESUME_ROLLOUT, self._lease())
                await self._serve()
            case Direction.TAKE_OVER:
                await self._take_over()
            case Direction.RETIRE if self.spec.trains:
                await self._lay_down()
                await self._perform(Component.TRAINING, Verb.SUSPEND)
            case Direction.RETIRE:
                await self._lay_down()
                await self._leave_rollout()
            case Direction.PUBLISH:
                await self._publish()
            case Direction.BOOT:
                await self._step(steps.REGISTER_ENGINE, self._entry(), "register-engine")
                await self._serve()

    async def _take_over(self) -> None:
        """Optimizer and weights come together, from the set that is on record; the cell answers what it holds then."""
        asked = self.spec.committed or self.spec.weights
        await self._on_cell(steps.TAKE_CORE, TakeCore(**self._ids(), weights=asked))

    async def _lay_down(self) -> None:
        """What led before refuses whatever comes late from now on. Nobody asks it any more, so it may be dead, too."""
        if self.spec.led:
            await self._tried(steps.LAY_DOWN_CORE, self._lease())

    async def _publish(self) -> None:
        kept = self.spec.publish == "keep_kv"
        await self._step(steps.CHANGE_DOOR, self._closed_door(in_place=kept), "close-door")
        if kept and await self._swapped():
            await self._step(steps.CHANGE_DOOR, self._open_door(), "open-door")
            return
        await self._cut_requests()
        await self._serve()

    async def _swapped(self) -> bool:
        try:
            load = LoadWeights(**self._ids(), weights=self.spec.weights)
            swapped = await self._on_cell(steps.SWAP_WEIGHTS, load)
        except _StepFailed:
            return False
        self._figure(weights_bytes=swapped.bytes)
        return True

    async def _leave_rollout(self) -> None:
        """Close the door, reroute, hand KV over, release rollout memory."""
        reroute = RerouteRequest(engine=self.engine, boot_epoch=self.spec.boot_epoch, lease=self.spec.lease_id)
        plan = await self._step(steps.REROUTE_EXECUTIONS, reroute, "reroute-executions")
        self._figure(executions_rerouted=len(plan.moves))
        homes = self._homes(plan.moves) if self.spec.kv_handoff else {}
        leaving = tuple(sorted(execution for moved in homes.values() for execution in moved))
        if leaving and not await self._tried(steps.RETAIN_KV, RetainKv(**self._ids(), executions=leaving)):
            homes = {}
        await self._cut_requests(await_kv_seconds=AWAIT_KV_SECONDS if homes else 0.0)
        for destination, executions in sorted(homes.items()):
            await self._hand_over(destination, executions)
        if leaving:
            await self._tried(steps.RELEASE_KV, self._lease())
        self.releasing = True
        await self._perform(Component.ROLLOUT, Verb.SUSPEND)
        self.memory_released = True

    async def _perform(self, component: Component, verb: Verb) -> None:
        """Every step of a verb that takes the lease alone, in their order."""
        for name in WORKER_GROUPS[component].steps[verb]:
            await self._on_cell(_STEPS[name], self._lease())

    def _homes(self, moves: tuple[Move, ...]) -> dict[str, tuple[str, ...]]:
        """Destination engine -> executions whose KV it should read."""
        homes: dict[str, list[str]] = {}
        for move in moves:
            if move.destination in self.spec.peers:
                homes.setdefault(move.destination, []).append(move.execution)
        return {engine: tuple(sorted(executions)) for engine, executions in homes.items()}

    async def _hand_over(self, destination: str, executions: tuple[str, ...]) -> None:
        """Let `destination` read the KV; whatever comes of it, the waiting requests go on."""
        pull = PullKv(
            run=self.spec.run,
            cell=int(destination.removeprefix("cell-")),
            lease=self.spec.lease,
            source_cell=self.spec.cell.index,
            executions=executions,
        )
        arrived: tuple[str, ...] = ()
        try:
            pulled = await self._step(steps.PULL_KV, pull, f"pull-kv-{destination}", queue=self.spec.peers[destination])
            arrived = pulled.arrived
            self._figure(kv_tokens_reused=pulled.tokens, kv_bytes=pulled.bytes)
        except _StepFailed:
            workflow.logger.warning("KV hand-off to %s failed: it recomputes", destination)
        lost = tuple(execution for execution in executions if execution not in set(arrived))
        for names, ok in ((arrived, True), (lost, False)):
            if names:
                done = HandoffDone(lease=self.spec.lease_id, engine=destination, executions=names, arrived=ok)
                outcome = "arrived" if ok else "recompute"
                await self._step(steps.ANNOUNCE_HANDOFF, done, f"announce-{outcome}-{destination}")

    async def _cut_requests(self, *, await_kv_seconds: float = 0.0) -> None:
        """Cancel what is outstanding at the engine (the proxy continues it elsewhere) until nothing is left."""
        cancel = CancelRequest(
            engine=self.engine,
            boot_epoch=self.spec.boot_epoch,
            lease=self.spec.lease_id,
            await_kv_seconds=await_kv_seconds,
        )
        cut = await self._step(steps.CANCEL_REQUESTS, cancel, "cancel-requests")
        self._figure(requests_moved=cut.requests_moved)
        await self._on_cell(steps.AWAIT_QUIET, self._lease())

    async def _serve(self) -> None:
        """Load and verify the published weights; only then does the door open."""
        load = LoadWeights(**self._ids(), weights=self.spec.weights)
        await self._on_cell(steps.LOAD_WEIGHTS, load)
        verified = await self._on_cell(steps.VERIFY_ENGINE, load)
        self._figure(weights_bytes=verified.bytes)
        await self._step(steps.CHANGE_DOOR, self._open_door(), "open-door")

    async def _way_back(self, reason: str) -> tuple[TransitionResult, str]:
        if self.spec.direction is Direction.TAKE_OVER:
            return await self._give_back_core(reason)
        leaves_rollout = self.spec.direction in (Direction.TO_TRAINING, Direction.RETIRE) and not self.spec.trains
        if not leaves_rollout or self.memory_released:
            return await self._last_resort(reason)
        try:
            if self._overdue():
                await self._step(steps.CHANGE_DOOR, self._closed_door(), "close-door")
                return TransitionResult.DONE, f"at its deadline, unfinished: {reason}"
            if self.spec.kv_handoff:
                await self._tried(steps.RELEASE_KV, self._lease(), "roll-back-release-kv")
            if self.releasing:  # nobody knows how far it came: take the memory again, and what was in it
                await self._on_cell(steps.RESUME_ROLLOUT, self._lease(), "roll-back-resume-rollout")
                await self._serve()
            else:
                await self._step(steps.CHANGE_DOOR, self._open_door(), "roll-back-open-door")
        except _Superseded:
            return TransitionResult.SUPERSEDED, "a newer boot of the cell worker"
        except _StepFailed as error:
            return await self._last_resort(f"{reason}; rolling back failed too: {error}")
        return TransitionResult.ROLLED_BACK, reason

    async def _give_back_core(self, reason: str) -> tuple[TransitionResult, str]:
        """How far it came does not matter, for it is not named: it goes on as the satellite that it was."""
        try:
            await self._tried(steps.LAY_DOWN_CORE, self._lease())
        except _Superseded:
            return TransitionResult.SUPERSEDED, "a newer boot of the cell worker"
        return TransitionResult.ROLLED_BACK, reason

    async def _last_resort(self, reason: str) -> tuple[TransitionResult, str]:
        """No step leads on or back: reboot the cell, or park it."""
        if not self.spec.may_reboot:
            return TransitionResult.PARKED, reason
        if self.superseded:
            return TransitionResult.SUPERSEDED, "a newer boot of the cell worker"
        started, step = workflow.time(), steps.REBOOT_CELL
        try:
            await self._on_cell(step, RebootCell(**self._ids(), reason=reason[:500]))
        except _Superseded:  # the next boot is there before the answer
            self.timings.append(StepTiming(name=step.name.replace("_", "-"), seconds=workflow.time() - started))
            self.done.append(step.name)
        except _StepFailed as error:
            return TransitionResult.PARKED, f"{reason}; the reboot failed too: {error}"
        return TransitionResult.REBOOTED, reason

    def _overdue(self) -> bool:
        """The cell has to be gone by now: what could not be done for that is not put right any more."""
        return self.spec.leaves_at is not None and workflow.time() >= self.spec.leaves_at

    async def _tried(self, step: Step[Argument, Result], argument: Argument, name: str = "") -> bool:
        """An optional step at the cell: False when it failed."""
        try:
            await self._on_cell(step, argument, name)
        except _StepFailed:
            return False
        return True

    async def _on_cell(self, step: Step[Argument, Result], argument: Argument, name: str = "") -> Result:
        return await self._step(step, argument, name or step.name.replace("_", "-"), queue=self.spec.queue)

    async def _step(
        self, step: Step[Argument, Result], argument: Argument, name: str, *, queue: str | None = None
    ) -> Result:
        """Run one step, timed; a newer boot ends the wait at once."""
        if self.superseded:
            raise _Superseded
        started = workflow.time()
        activity_id = f"{name}-cell-{self.spec.cell.index}"
        task = asyncio.ensure_future(
            call(step, argument, queue=queue or self.control, activity_id=activity_id, summary=name.replace("-", " "))
        )
        await workflow.wait_condition(lambda: task.done() or self.superseded)
        if not task.done():
            task.cancel()
            raise _Superseded
        try:
            result = task.result()
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            detail = failure_text(error)
            seconds = workflow.time() - started
            self.timings.append(StepTiming(name=name, seconds=seconds, ok=False, detail=detail))
            raise _StepFailed(name, detail) from error
        self.timings.append(StepTiming(name=name, seconds=workflow.time() - started))
        self.done.append(step.name)
        return result

    def _ids(self) -> dict[str, Any]:
        return {"run": self.spec.run, "cell": self.spec.cell.index, "lease": self.spec.lease}

    def _lease(self) -> CellLease:
        return CellLease(**self._ids())

    def _entry(self) -> EngineEntry:
        cell = self.spec.cell
        return EngineEntry(
            engine=self.engine,
            cell=cell.index,
            boot_epoch=self.spec.boot_epoch,
            url=self.spec.engine_url,
            slots=cell.slots,
            kv_tokens=cell.kv_tokens,
        )

    def _closed_door(self, *, in_place: bool = False) -> DoorChange:
        """`in_place`: what runs goes on, and may say tokens of the new version from now on."""
        coming = self.spec.weights.version if in_place else None
        return DoorChange(engine=self.engine, boot_epoch=self.spec.boot_epoch, open=False, version=coming)

    def _open_door(self) -> DoorChange:
        weights = self.spec.weights
        return DoorChange(
            engine=self.engine,
            boot_epoch=self.spec.boot_epoch,
            open=True,
            version=weights.version,
            checksum=weights.checksum,
        )

    def _figure(self, **more: int) -> None:
        """Add to the figures of this transition."""
        current = self.figures.model_dump()
        self.figures = TransitionFigures(**{name: current[name] + more.get(name, 0) for name in current})

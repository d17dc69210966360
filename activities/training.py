"""A training cell's part in a batch: join, work on the stream, seal, combine (the core), release.

Fencing is the actor's: it refuses another boot, an older lease, other weights, a batch that is over.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from temporalio import activity
from temporalio.client import Client

from activities.cell import Cell
from activities.weights import ensure_actor_weights, ensure_core, holds
from infra.records.batches import add_claim, finish_claim
from infra.update_metrics import figures
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
from workflows.messages.errors import Fenced, GyreError, VersionMismatch
from workflows.messages.scheduling import Weights
from workflows.messages.training import (
    ActorStatus,
    BatchPhase,
    BatchRequest,
    Combine,
    CombineGroup,
    Commit,
    Contribute,
    LayDown,
    OpenBatch,
    Participant,
    Resume,
    RunMicroStep,
    SealReply,
    TokenMetrics,
)


class TrainingActivities:
    """Runs on a cell's own queue; `run_micro_step` on the stream queue of the batch it has joined."""

    def __init__(self, cell: Cell, client: Client) -> None:
        self._cell, self._client = cell, client

    @activity.defn(name="join_batch")
    async def join_batch(self, request: JoinBatch) -> None:
        """Hold exactly the batch's weights, accumulate for it, then serve its stream. Repeating it changes nothing.

        Whoever leads has the optimizer that goes with these weights, or takes it from their checkpoint. A sealed batch
        is opened again with what it has; an update that was applied but never recorded is taken back,
        one that was recorded stays, although nobody could tell the actor so. Raises VersionMismatch when these weights
        are nowhere to be had.
        """
        cell, fence = self._cell, await self._fence()
        status = await cell.actor.status()
        if status.is_core and request.core != cell.index:
            # It led before, or took over and was not named: whoever leads now has the optimizer.
            await cell.actor.lay_down(LayDown(**fence))
            status = await cell.actor.status()
        if status.batch is not None and status.batch != request.batch:
            # The Scheduler has one batch open at a time: that one is over, and the word of how it ended was lost.
            await cell.stream.close()
            await end_batch(cell, status, fence, request.weights)
        elif status.phase in (BatchPhase.SEALED, BatchPhase.APPLIED):
            # Sealed, too, may hide an update: one in memory that no disk would take.
            await cell.actor.take_back(BatchRequest(**fence, batch=request.batch))
        if request.core == cell.index:
            await ensure_core(cell, request.weights, fence["lease_epoch"])
        elif not await ensure_actor_weights(cell, request.weights, fence["lease_epoch"], request.core):
            raise VersionMismatch(f"cell {cell.index} has no way to version {request.weights.version}")
        await cell.actor.resume(Resume(**fence))
        await cell.actor.open_batch(
            OpenBatch(
                **fence,
                batch=request.batch,
                version=request.weights.version,
                checksum=request.weights.checksum,
            )
        )
        await cell.stream.open(request.batch, request.in_flight_depth)

    @activity.defn(name="run_micro_step")
    async def run_micro_step(self, task: MicroStepTask) -> MicroStepDone:
        """Claim one micro-step: say so, accumulate its gradient, report the attempt that is in the sum."""
        cell, step, attempt = self._cell, task.micro_step, task.emission
        claim = {"batch": step.batch, "micro_step": step.index, "attempt": attempt}
        await asyncio.to_thread(
            add_claim,
            cell.records,
            **claim,
            cell=cell.index,
            boot_epoch=cell.boot_epoch,
            version=task.weights.version,
        )
        await self._client.get_workflow_handle(step.batch).signal("claimed", step.index)
        reply = await cell.actor.run_micro_step(
            RunMicroStep(
                **await self._fence(),
                micro_step=step,
                attempt=attempt,
                loss=task.loss,
            )
        )
        metrics = {
            **figures(reply.metrics, reply.version),
            "seconds": reply.seconds,
            "lane": float(reply.lane),
            "order": float(reply.order),
        }
        await asyncio.to_thread(finish_claim, cell.records, **claim, metrics=metrics, checksum=reply.checksum)
        accepted = Accepted(index=reply.index, attempt=reply.attempt, cell=reply.cell, boot_epoch=reply.boot_epoch)
        return MicroStepDone(accepted=accepted, loss=reply.metrics.loss_sum, metrics=metrics)

    @activity.defn(name="seal_batch")
    async def seal_batch(self, request: SealBatch) -> Sealed:
        """Leave the stream, then say what is really in the sum."""
        await self._cell.stream.close()
        sealed = await self._cell.actor.seal(BatchRequest(**await self._fence(), batch=request.batch))
        status = await self._cell.actor.status()
        return Sealed(
            cell=sealed.cell,
            boot_epoch=sealed.boot_epoch,
            accumulated=_pairs(sealed),
            weights=Weights(version=sealed.version, checksum=status.checksum or ""),
            metrics=figures(sealed.metrics, sealed.version),
        )

    @activity.defn(name="combine_update")
    async def combine_update(self, request: CombineUpdate) -> UpdateApplied:
        """At the core: read and sum the participants' gradients, one update, durable as a checkpoint.

        Raises Fenced when a participant no longer holds what the batch accepted, ActorUnavailable or TransferFailed
        when it cannot be read.
        """
        sealed = {account.cell: await self._sealed(account, request.batch) for account in request.participants}
        own = sealed.get(self._cell.index)
        group = prefix_group(own, sealed, current_attempt())
        combine = Combine(
            **await self._fence(),
            batch=request.batch,
            own=own.accumulated if own else (),
            participants=tuple(
                Participant(
                    cell=other.cell,
                    boot_epoch=other.boot_epoch,
                    accumulated=other.accumulated,
                    manifest=other.manifest,
                )
                for cell, other in sorted(sealed.items())
                if cell != self._cell.index and other.manifest is not None
            ),
            valid_executions=request.normalizer,
            learning_rate=request.learning_rate,
            betas=request.betas,
            weight_decay=request.weight_decay,
            max_grad_norm=request.max_grad_norm,
            counters=dict[str, Any](request.counters),
            groups=request.groups,
            group=group,
        )
        satellites = () if group is None else group.cells[1:]
        handing_in = [asyncio.create_task(self._hand_in(cell, request.batch, group)) for cell in satellites]
        try:
            reply = await self._cell.actor.combine(combine)
        finally:
            for task in handing_in:
                task.cancel()  # the core has it all, or did without
            await asyncio.gather(*handing_in, return_exceptions=True)
        metrics = TokenMetrics()
        for account in sealed.values():
            metrics = metrics.merged(account.metrics)
        return UpdateApplied(
            weights=Weights(version=reply.version, checksum=reply.checksum),
            checkpoint=reply.checkpoint.name if reply.checkpoint else "",
            grad_norm=reply.grad_norm or 0.0,
            gradient_checksum=reply.gradient_checksum,
            metrics={
                **figures(metrics, request.weights.version),
                "loss": metrics.loss_sum / request.normalizer,
                "grad_norm": reply.grad_norm or 0.0,
                "combine_seconds": reply.seconds,
            },
        )

    async def _hand_in(self, cell: int, batch: str, group: CombineGroup | None) -> None:
        """Have a satellite take part in the core's combine; the core does without where that fails."""
        if group is None:
            return
        actor = self._cell.peer_actor(cell)
        try:
            status = await actor.status()
            fence = {"boot_epoch": dict(group.members)[cell], "lease_epoch": status.lease_epoch}
            await actor.contribute(Contribute(**fence, batch=batch, group=group))
        except GyreError as error:
            activity.logger.warning("cell %d does not hand in its gradient: %s", cell, error)
        finally:
            await actor.close()

    async def _sealed(self, account: Sealed, batch: str) -> SealReply:
        """The participant's sealed gradient, still exactly the one that the batch accepted."""
        own = account.cell == self._cell.index
        actor = self._cell.actor if own else self._cell.peer_actor(account.cell)
        try:
            status = await actor.status()
            request = BatchRequest(boot_epoch=account.boot_epoch, lease_epoch=status.lease_epoch, batch=batch)
            reply = await actor.seal(request)
        finally:
            if not own:
                await actor.close()
        if _pairs(reply) != account.accumulated:
            raise Fenced(f"cell {account.cell} no longer holds what the batch accepted")
        return reply

    @activity.defn(name="release_batch")
    async def release_batch(self, request: ReleaseBatch) -> None:
        """The update is committed: the gradient may go. With `discard` it never counted."""
        await self._cell.stream.close()
        status, fence = await self._cell.actor.status(), await self._fence()
        if status.batch != request.batch and not status.is_core:
            return
        if request.discard:
            if status.phase is BatchPhase.APPLIED:
                await self._cell.actor.take_back(BatchRequest(**fence, batch=request.batch))
            await self._cell.actor.discard(BatchRequest(**fence, batch=request.batch))
        else:
            await self._cell.actor.commit(Commit(**fence, batch=request.batch))

    async def _fence(self) -> dict[str, int]:
        """This boot, and whatever lease the cell's actor has seen last: batch steps do not outrank role changes."""
        status = await self._cell.actor.status()
        return {"boot_epoch": self._cell.boot_epoch, "lease_epoch": status.lease_epoch}


async def end_batch(cell: Cell, status: ActorStatus, fence: Mapping[str, int], committed: Weights | None) -> None:
    """End the batch that `status` says the actor holds. An update to `committed`, the weights on record, was recorded:
    it is committed; whatever else is there never counted."""
    batch = status.batch
    if batch is None:
        return
    if status.phase is BatchPhase.APPLIED and committed is not None and holds(status, committed):
        await cell.actor.commit(Commit(**fence, batch=batch))
    else:
        await cell.actor.discard(BatchRequest(**fence, batch=batch))


def current_attempt() -> int:
    """Of the activity that runs, from 1; 1 outside of one."""
    return activity.info().attempt if activity.in_activity() else 1


def prefix_group(own: SealReply | None, sealed: Mapping[int, SealReply], attempt: int = 1) -> CombineGroup | None:
    """The communication group of everybody who sealed, the core first, then in order of cells; None where gradients are
    read one-sided.

    So they are on every retry: a core that has applied the update already would never come to the group.
    """
    if attempt > 1 or own is None or not own.meeting or len(sealed) < 2:
        return None
    members = tuple(
        (cell, sealed[cell].boot_epoch) for cell in sorted(sealed, key=lambda cell: (cell != own.cell, cell))
    )
    return CombineGroup(meeting=own.meeting, members=members)


def _pairs(sealed: SealReply) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((entry.index, entry.attempt) for entry in sealed.accumulated))

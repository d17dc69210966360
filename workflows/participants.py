"""Who accumulates gradients for a batch: the members the Scheduler names, those that have joined, the steps there.

Invariant: what the stream counts for a cell belongs to its boot in `joined`, or that cell is on its way back in; a
cell that cannot be reached loses what it accumulated, and its micro-steps go back on the stream.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from workflows import steps
from workflows.messages.batch import BatchSpec, JoinBatch, ReleaseBatch, SealBatch, Sealed
from workflows.messages.scheduling import Member
from workflows.parking import Parking, call, failure_text
from workflows.stream import Stream

REJOIN_SECONDS = 5


class Participants(Parking):
    """The cells of one batch."""

    def __init__(
        self, spec: BatchSpec, stream: Stream, members: tuple[Member, ...], joined: tuple[Member, ...]
    ) -> None:
        """Who leads is known with the first member, and again with whoever comes after a hand-over."""
        self.spec, self.batch, self.stream = spec, spec.batch, stream
        self.members = {member.cell: member for member in members}
        self.joined = {member.cell: member for member in joined}
        newest = max(members, key=lambda member: member.change, default=None)
        self.core, self.change = (newest.core, newest.change) if newest is not None else (0, 0)
        self.joining: dict[int, asyncio.Task[None]] = {}
        self.closing = False
        self.broken: BaseException | None = None

    @workflow.signal
    def member_joined(self, member: Member) -> None:
        """A cell is in training and may join; a newer boot replaces an older one."""
        if member.change >= self.change:
            self.core, self.change = member.core, member.change
        known = self.members.get(member.cell)
        if known is None or member.boot_epoch >= known.boot_epoch:
            if known is not None and member.boot_epoch > known.boot_epoch:
                self._forget(known)
            self.members[member.cell] = member

    @workflow.signal
    def member_left(self, member: Member) -> None:
        """A cell's boot is gone (or it left training): what it accumulated does not count."""
        known = self.members.get(member.cell)
        if known is not None and known.boot_epoch <= member.boot_epoch:
            self._forget(known)

    def _forget(self, member: Member) -> None:
        """Return everything this boot of a cell accumulated to the stream."""
        self.members.pop(member.cell, None)
        self.joined.pop(member.cell, None)
        self.stream.take_back(member.cell)
        joining = self.joining.pop(member.cell, None)
        if joining is not None:
            joining.cancel()

    def _may_join(self) -> list[Member]:
        """Members that are not in yet. The core comes first: satellites pull its snapshot."""
        if self.closing:
            return []
        waiting = [self.members[cell] for cell in sorted(self.members)]
        return [
            member
            for member in waiting
            if member.cell not in self.joined
            and member.cell not in self.joining
            and (member.cell == self.core or self.core in self.joined)
        ]

    def _all_present(self) -> bool:
        """Every cell whose micro-steps count has joined, in the boot that computed them."""
        return all(
            (member := self.joined.get(done.cell)) is not None and member.boot_epoch == done.boot_epoch
            for done in self.stream.accepted.values()
        )

    def _start_joins(self) -> None:
        for member in self._may_join():
            self.joining[member.cell] = self._start(self._join(member))

    def _start(self, job: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a job beside the main loop; a bug in it stops the batch where it can be seen."""
        task = asyncio.create_task(job)
        task.add_done_callback(self._job_done)
        return task

    def _job_done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self.broken = task.exception()

    async def _join(self, member: Member) -> None:
        request = JoinBatch(
            run=self.spec.spec.run,
            cell=member.cell,
            batch=self.batch,
            weights=self.spec.weights,
            in_flight_depth=self.spec.spec.policy.in_flight_depth,
            core=self.core,
        )
        try:
            await call(
                steps.JOIN_BATCH,
                request,
                queue=member.queue,
                activity_id=f"join-cell-{member.cell}-{member.boot_epoch}",
            )
            if self.members.get(member.cell) == member:
                self.joined[member.cell] = member
        except ActivityError as error:
            if is_cancelled_exception(error):
                return
            workflow.logger.warning("cell %d could not join: %s", member.cell, failure_text(error))
            if self.members.get(member.cell) == member:
                self.stream.take_back(member.cell)  # its gradient is out of reach
            await asyncio.sleep(REJOIN_SECONDS)  # then the main loop lets it try again, while it is a member
        finally:
            if self.joining.get(member.cell) is asyncio.current_task():
                self.joining.pop(member.cell)

    async def _seal(self, member: Member) -> Sealed | None:
        request = SealBatch(run=self.spec.spec.run, cell=member.cell, batch=self.batch)
        try:
            return await call(
                steps.SEAL_BATCH, request, queue=member.queue, summary=f"cell {member.cell}: what was accumulated"
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("cell %d did not seal: %s", member.cell, failure_text(error))
            return None

    async def _discard(self, member: Member) -> None:
        """Void a cell's whole gradient. It may join again, with an empty one."""
        self.joined.pop(member.cell, None)
        self.stream.take_back(member.cell)
        await self._release(member, discard=True)

    async def _release(self, member: Member, *, discard: bool) -> None:
        request = ReleaseBatch(run=self.spec.spec.run, cell=member.cell, batch=self.batch, discard=discard)
        try:
            await call(steps.RELEASE_BATCH, request, queue=member.queue, summary=f"cell {member.cell}: gradients")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("cell %d did not release: %s", member.cell, failure_text(error))

"""Durable records of what the scheduler decided, what cells did, and which batches count."""

import asyncio

from sqlalchemy import Engine
from temporalio import activity

from infra.records import batches, cores, decisions
from workflows.messages.batch import CommitBatch, OpenedBatch
from workflows.messages.control import RecordCore, RecordLedger, RecordPublished
from workflows.messages.transition import TransitionReport


class LedgerActivities:
    """Runs on the control queue; every write is idempotent."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @activity.defn(name="record_ledger")
    async def record_ledger(self, request: RecordLedger) -> None:
        """Append decisions and refusals with their reasons."""
        await asyncio.to_thread(decisions.add_entries, self._engine, request.entries)

    @activity.defn(name="record_published")
    async def record_published(self, request: RecordPublished) -> None:
        """Record when a version was first served everywhere."""
        await asyncio.to_thread(batches.mark_published, self._engine, request.version)

    @activity.defn(name="record_core")
    async def record_core(self, request: RecordCore) -> None:
        """Record which cell is the core from now on."""
        await asyncio.to_thread(cores.name_core, self._engine, request)

    @activity.defn(name="record_transition")
    async def record_transition(self, report: TransitionReport) -> None:
        """Record one role change with the seconds of every step."""
        await asyncio.to_thread(decisions.add_transition, self._engine, report)

    @activity.defn(name="record_batch_opened")
    async def record_batch_opened(self, opened: OpenedBatch) -> None:
        """Record a batch as opened at one weight version."""
        await asyncio.to_thread(batches.open_batch, self._engine, opened)

    @activity.defn(name="commit_batch")
    async def commit_batch(self, commit: CommitBatch) -> None:
        """Record what counted and the update; from here on the version is committed."""
        await asyncio.to_thread(batches.commit_batch, self._engine, commit)

"""A batch whose release was lost: what the core's actor holds then is on record, and stays. Real actors, no HTTP."""

import asyncio
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from temporalio.testing import ActivityEnvironment

from activities.cell import Cell
from activities.memory import MemoryActivities
from activities.training import TrainingActivities, prefix_group
from activities.weights import WeightsActivities, ensure_actor_weights
from infra.checkpoints import Checkpoint, CheckpointStore
from infra.records.batches import record_base
from infra.records.schema import updates
from tests.workers.cell.training.material import write_policy
from tests.workers.cell.training.rig import BOOT, Rig
from tests.workers.cell.training.test_paced_actor import PacedRig
from workflows.messages.batch import JoinBatch, ReleaseBatch
from workflows.messages.cell_steps import CellLease
from workflows.messages.errors import ActorUnavailable, StillHeld
from workflows.messages.scheduling import Weights
from workflows.messages.training import BatchPhase, BatchRequest, Commit, ExposeSnapshot, SealReply, TokenMetrics


class Direct:
    """An ActorClient's calls, made to an actor of this process; the first of `failing` are lost on the way."""

    def __init__(self, actor: Any, **failing: int) -> None:
        self.actor, self.failing = actor, failing

    def __getattr__(self, name: str) -> Any:
        async def call(*requests: Any) -> Any:
            if self.failing.get(name):
                self.failing[name] -= 1
                raise ActorUnavailable(f"{name} is lost")
            return getattr(self.actor, name)(*requests)

        return call

    async def close(self) -> None:
        """There is no connection."""


class Stream:
    """No queue is served here."""

    batch: str | None = None

    async def open(self, batch: str, depth: int) -> None:
        self.batch = batch

    async def close(self) -> None:
        self.batch = None


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("policy") / "tied")


@pytest.fixture(params=[Rig, PacedRig], ids=["real", "paced"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, policy: Path) -> Rig:
    return request.param(tmp_path, policy)


def cell_of(actor: Any, engine: Any, peer: Any = None, index: int = 0) -> Cell:
    nothing = dict.fromkeys(("engine", "linker", "proof", "published", "checkpoints", "base_model", "peer_linker"))
    return Cell(
        run="r",
        index=index,
        boot_epoch=1,
        actor=actor,
        stream=Stream(),
        records=engine,
        peer_actor=lambda _: peer,
        **nothing,  # pyright: ignore[reportArgumentType]
    )


def applied(rig: Rig) -> tuple[Weights, Weights]:
    """An update that is in the core's weights and in a checkpoint, and not yet committed at the actor."""
    reply = rig.core.combine(rig.batch(batch="old"))
    before = Weights(version=0, checksum=rig.start.checksum)
    return before, Weights(version=reply.version, checksum=reply.checksum)


def held_by(rig: Rig) -> Weights:
    status = rig.core.status()
    assert status.version is not None
    return Weights(version=status.version, checksum=status.checksum or "")


def committed_at(rig: Rig) -> int | None:
    found = CheckpointStore(rig.folder / "checkpoints").committed()
    return found.meta.version if found else None


async def test_the_next_batch_commits_an_update_that_is_on_record(rig, engine):
    _, after = applied(rig)
    training = TrainingActivities(cell_of(Direct(rig.core, commit=3), engine), None)  # pyright: ignore[reportArgumentType]
    for _ in range(3):
        with pytest.raises(ActorUnavailable):
            await ActivityEnvironment().run(training.release_batch, ReleaseBatch(run="r", cell=0, batch="old"))
    await ActivityEnvironment().run(
        training.join_batch, JoinBatch(run="r", cell=0, batch="new", weights=after, in_flight_depth=1)
    )
    status = rig.core.status()
    assert (status.batch, status.phase, status.version) == ("new", BatchPhase.OPEN, 1)
    assert committed_at(rig) == 1
    rig.core.discard(BatchRequest(batch="new", **BOOT))
    assert rig.core.status().checksum == after.checksum  # and this is what a later roll-back goes back to


async def test_the_next_batch_drops_an_update_that_is_not(rig, engine):
    before, _ = applied(rig)
    training = TrainingActivities(cell_of(Direct(rig.core), engine), None)  # pyright: ignore[reportArgumentType]
    await ActivityEnvironment().run(
        training.join_batch, JoinBatch(run="r", cell=0, batch="new", weights=before, in_flight_depth=1)
    )
    assert (rig.core.status().batch, rig.core.status().checksum) == ("new", before.checksum)
    assert committed_at(rig) is None


@pytest.mark.parametrize("on_record", [True, False])
async def test_memory_is_given_up_with_the_weights_on_record(rig, engine, on_record):
    before, after = applied(rig)
    record_base(engine, after if on_record else before)
    memory = MemoryActivities(cell_of(Direct(rig.core), engine))
    await ActivityEnvironment().run(memory.release_training, CellLease(run="r", cell=0, lease=1))
    status = rig.core.status()
    assert (status.phase, status.checksum) == (BatchPhase.CLOSED, (after if on_record else before).checksum)
    assert committed_at(rig) == (1 if on_record else None)


async def test_a_satellite_waits_for_a_slot_outside_of_the_core(engine, tmp_path, policy, monkeypatch):
    """Two readers hold both slots: a third is turned away at once, and comes again."""
    rig = Rig(tmp_path, policy)
    satellite, pins = rig.actor(1), []
    for batch in ("a", "b"):
        held = held_by(rig)
        pins.append(rig.core.expose_snapshot(ExposeSnapshot(version=held.version, **BOOT)).pin)
        rig.core.combine(rig.batch(batch=batch))
        rig.core.commit(Commit(batch=batch, **BOOT))
    held = held_by(rig)
    with pytest.raises(StillHeld):
        rig.core.expose_snapshot(ExposeSnapshot(version=held.version, **BOOT))
    monkeypatch.setattr("activities.weights.SLOT_PAUSE_SECONDS", 0.01)
    cell = cell_of(Direct(satellite), engine, peer=Direct(rig.core), index=1)
    pulling = asyncio.create_task(ensure_actor_weights(cell, held, 1, 0))
    await asyncio.sleep(0.03)
    assert not pulling.done()
    rig.core._snapshots.release(pins[0])
    assert await pulling
    assert satellite.status().checksum == held.checksum


def test_only_the_first_attempt_meets_in_a_group():
    """A core that has applied the update would not come, and the satellites would wait for it."""
    sealed = {
        cell: SealReply(
            batch="b",
            cell=cell,
            boot_epoch=1,
            version=0,
            accumulated=(),
            metrics=TokenMetrics(),
            manifest=None,
            meeting="" if cell else "127.0.0.1:1/0",
        )
        for cell in (0, 1)
    }
    first, again = prefix_group(sealed[0], sealed, 1), prefix_group(sealed[0], sealed, 2)
    assert first is not None
    assert (first.cells, again) == ((0, 1), None)


async def test_a_checkpoint_is_hashed_while_the_heart_beats(rig, engine):
    """Minutes for a large model: the event loop must go on meanwhile."""
    before, after = applied(rig)
    rig.core.commit(Commit(batch="old", **BOOT))
    record_base(engine, before)
    with engine.begin() as connection:
        connection.execute(
            insert(updates).values(version=1, checksum=after.checksum, checkpoint="v00000001-a0001", committed_at=1.0)
        )
    cell = cell_of(Direct(rig.core), engine, peer=Direct(rig.actor(0)), index=1)
    cell.actor = Direct(rig.actor(1))  # pyright: ignore[reportAttributeAccessIssue]
    cell.checkpoints = rig.folder / "checkpoints"
    threads: list[threading.Thread] = []

    class Watched(CheckpointStore):
        def find(self, version: int, checksum: str | None = None, *, unread: Collection[str] = ()) -> Checkpoint:
            threads.append(threading.current_thread())
            return super().find(version, checksum, unread=unread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("activities.weights.CheckpointStore", Watched)
        folder = await WeightsActivities(cell)._folder(after, 1)
    assert folder.name == "v00000001-a0001"
    assert threads[0] is not threading.main_thread()

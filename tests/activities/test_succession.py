"""The steps of a hand-over at real actors: what is on record is taken over, and who is not named does not lead."""

from pathlib import Path

import pytest
from sqlalchemy import insert
from temporalio.testing import ActivityEnvironment

from activities.succession import SuccessionActivities
from activities.training import TrainingActivities
from infra.checkpoints import CheckpointStore
from infra.records.batches import record_base
from infra.records.cores import core_on_record, name_core
from infra.records.schema import updates
from tests.activities.test_lost_releases import Direct, applied, cell_of, committed_at
from tests.workers.cell.training.material import write_policy
from tests.workers.cell.training.rig import BOOT, Rig
from tests.workers.cell.training.test_paced_actor import PacedRig
from tests.workers.cell.training.test_succession import update
from workflows.messages.batch import JoinBatch
from workflows.messages.cell_steps import CellLease, TakeCore
from workflows.messages.control import RecordCore
from workflows.messages.errors import Fenced, VersionMismatch
from workflows.messages.scheduling import Weights
from workflows.messages.training import BatchPhase, Commit, RestoreBase, Resume

LEASE = {"run": "r", "cell": 1, "lease": 4}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("policy") / "tied")


@pytest.fixture
def rig(tmp_path: Path, policy: Path) -> Rig:
    return PacedRig(tmp_path, policy)


def committed(rig: Rig, engine) -> tuple[Weights, Weights]:
    """The weights before and after an update that is on record."""
    before, after = applied(rig)
    rig.core.commit(Commit(batch="old", **BOOT))
    on_record(engine, before, after)
    return before, after


def on_record(engine, before: Weights, after: Weights) -> None:
    record_base(engine, before)
    with engine.begin() as connection:
        row = {"version": 1, "checksum": after.checksum, "checkpoint": "v00000001-a0001", "committed_at": 1.0}
        connection.execute(insert(updates).values(**row))


def succession(actor, engine) -> SuccessionActivities:
    return SuccessionActivities(cell_of(Direct(actor), engine, index=1))


async def test_the_newest_commit_is_taken_over(rig, engine):
    """Also by who was asked before the word of it had come."""
    before, after = committed(rig, engine)
    heir = rig.satellite()
    steps = succession(heir, engine)
    for weights in (before, after, after):
        taken = await ActivityEnvironment().run(steps.take_core, TakeCore(**LEASE, weights=weights))
        assert (taken.weights, taken.optimizer_steps) == (after, 1)
    with pytest.raises(Fenced):
        await ActivityEnvironment().run(steps.take_core, TakeCore(**{**LEASE, "lease": 3}, weights=after))


async def test_what_is_not_on_record_is_not_taken_over(rig, engine):
    _, after = committed(rig, engine)
    heir = rig.satellite()
    steps = succession(heir, engine)
    for other in (after.model_copy(update={"version": 2}), after.model_copy(update={"checksum": "other"})):
        with pytest.raises(VersionMismatch):
            await ActivityEnvironment().run(steps.take_core, TakeCore(**LEASE, weights=other))
    assert heir.status().optimizer_steps is None


@pytest.mark.parametrize("recorded", [True, False])
async def test_laying_down_keeps_what_is_on_record(rig, engine, recorded):
    before, after = applied(rig)
    if recorded:
        on_record(engine, before, after)
    else:
        record_base(engine, before)
    steps = succession(rig.core, engine)
    await ActivityEnvironment().run(steps.lay_down_core, CellLease(**LEASE))
    status = rig.core.status()
    assert (status.optimizer_steps, status.phase) == (None, BatchPhase.CLOSED)
    assert status.checksum == (after if recorded else before).checksum
    assert committed_at(rig) == (1 if recorded else None)


def joining(weights: Weights, core: int) -> JoinBatch:
    return JoinBatch(run="r", cell=1, batch="new", weights=weights, in_flight_depth=1, core=core)


@pytest.mark.parametrize("kind", [Rig, PacedRig])
async def test_who_is_named_leads_whatever_was_lost_before(kind, engine, tmp_path, policy):
    """It was named and booted as a satellite, or before the last commit: joining makes it what it is to be."""
    rig = kind(tmp_path, policy)
    _, after = committed(rig, engine)
    heir = rig.actor(1)
    heir.restore_base(RestoreBase.model_validate({"version": 0, "checksum": rig.start.checksum, **BOOT}))
    training = TrainingActivities(cell_of(Direct(heir), engine, index=1), None)  # pyright: ignore[reportArgumentType]
    await ActivityEnvironment().run(training.join_batch, joining(after, core=1))
    status = heir.status()
    assert (status.batch, status.optimizer_steps, status.checksum) == ("new", 1, after.checksum)


async def test_who_is_not_named_does_not_lead(rig, engine):
    _, after = committed(rig, engine)
    heir = rig.satellite()
    await ActivityEnvironment().run(succession(heir, engine).take_core, TakeCore(**LEASE, weights=after))
    training = TrainingActivities(cell_of(Direct(heir), engine, index=1), None)  # pyright: ignore[reportArgumentType]
    await ActivityEnvironment().run(training.join_batch, joining(after, core=2))
    assert (heir.status().batch, heir.status().optimizer_steps) == ("new", None)


@pytest.mark.parametrize("kind", [Rig, PacedRig])
async def test_an_optimizer_of_older_weights_is_not_taken_for_the_newest(kind, engine, tmp_path, policy):
    """It took over, was not named, and read the next version from whoever led: then it is asked again."""
    rig = kind(tmp_path, policy)
    _, after = committed(rig, engine)
    heir = rig.satellite()
    steps = succession(heir, engine)
    await ActivityEnvironment().run(steps.take_core, TakeCore(**LEASE, weights=after))
    reply = rig.core.combine(rig.batch(batch="next", seed=1))
    rig.core.commit(Commit(batch="next", **BOOT))
    row = {"version": 2, "checksum": reply.checksum, "checkpoint": "v00000002-a0001", "committed_at": 2.0}
    with engine.begin() as connection:
        connection.execute(insert(updates).values(**row))
    rig.hand_weights(heir)
    assert (heir.status().version, heir.status().optimizer_steps) == (2, None)
    newest = Weights(version=2, checksum=reply.checksum)
    taken = await ActivityEnvironment().run(steps.take_core, TakeCore(**LEASE, weights=newest))
    assert (taken.weights, taken.optimizer_steps) == (newest, 2)


@pytest.mark.parametrize("kind", [Rig, PacedRig])
def test_a_checkpoint_names_whoever_made_it(kind, tmp_path, policy):
    rig = kind(tmp_path, policy)
    heir = rig.actor(1)
    heir.restore_base(RestoreBase.model_validate({"version": 0, "as_core": True, **BOOT}))
    heir.resume(Resume(**BOOT))
    assert update(rig, heir, "first").version == 1
    found = CheckpointStore(tmp_path / "checkpoints").last_complete()
    assert [(entry.micro_step, entry.cell) for entry in found.meta.ledger.micro_steps] == [(0, 1)]


def test_the_core_on_record_is_the_last_one_named(engine):
    assert core_on_record(engine) == (0, 0)
    weights = Weights(version=3, checksum="c")
    for change, cell in ((1, 2), (2, 1), (2, 1)):
        name_core(engine, RecordCore(run="r", change=change, cell=cell, weights=weights))
    assert core_on_record(engine) == (1, 2)
    with pytest.raises(Fenced):
        name_core(engine, RecordCore(run="r", change=2, cell=3, weights=weights))

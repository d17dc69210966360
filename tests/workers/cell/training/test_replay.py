"""A recorded batch recomputed from its records gives the gradient that was applied, to the last bit."""

from pathlib import Path

import pytest
from sqlalchemy import Engine, insert, update

from infra.micro_steps import decode, encode
from infra.records import batches
from infra.records.database import open_database
from infra.records.schema import batches as batches_table
from infra.records.schema import claims, micro_steps
from tests.workers.cell.training.rig import BOOT, CLIP, UPDATE, Rig, twelve_executions
from workers.cell.training.actor import TrainingActor
from workers.cell.training.replay import BatchReplay, recorded, replay
from workflows.messages import training as m
from workflows.messages.batch import Accepted, CommitBatch, OpenedBatch
from workflows.messages.burst import Training
from workflows.messages.errors import AuditFailure, ChecksumMismatch, InvalidInput, VersionMismatch
from workflows.messages.scheduling import Weights

SETTINGS = Training(**UPDATE, **CLIP["loss"].model_dump())


@pytest.fixture
def records(tmp_path: Path) -> Engine:
    return open_database(f"sqlite:///{tmp_path / 'records.db'}", create=True)


@pytest.fixture
def rig(tmp_path: Path, policy: Path) -> Rig:
    return Rig(tmp_path, policy)


def train(
    rig: Rig, records: Engine, batch: str, shares: dict[TrainingActor, list[int]], settings: Training = SETTINGS
) -> None:
    """One update, recorded as a run records it; each actor sums the micro-steps in the order given."""
    before = rig.core.status()
    weights = Weights(version=before.version or 0, checksum=before.checksum or "")
    if weights.version == 0:
        batches.record_base(records, weights)
    opened = OpenedBatch(run="r", batch=batch, burst="b", step=0, weights=weights, training=settings)
    batches.open_batch(records, opened)
    accepted, sealed = [], []
    for actor, indices in shares.items():
        rig.open(actor, batch)
        for index in indices:
            claim = {"batch": batch, "micro_step": index, "attempt": 1}
            cell = actor.settings.cell
            batches.add_claim(records, **claim, cell=cell, boot_epoch=1, version=weights.version)
            reply = rig.run(actor, [twelve_executions()[index]], index=index, batch=batch, loss=settings.loss)
            batches.finish_claim(records, **claim, metrics={})
            accepted.append(Accepted(index=reply.index, attempt=1, cell=cell, boot_epoch=1))
            blob = rig.objects.read(f"micro-steps/{batch}/{index}.safetensors")
            row = {"group_id": "b/0", "uri": f"micro-steps/{batch}/{index}.safetensors", "tokens": 1}
            with records.begin() as connection:
                ref = rig.objects.put(str(row["uri"]), blob)
                connection.execute(
                    insert(micro_steps).values(batch=batch, micro_step=index, sha256=ref.sha256, target_tokens=1, **row)
                )
    sealed = [rig.seal(actor, batch) for actor in shares]
    applied = rig.core.combine(rig.combine_request(sealed, valid=12, batch=batch))
    assert applied.checkpoint is not None
    batches.commit_batch(
        records,
        CommitBatch(
            run="r",
            batch=batch,
            burst="b",
            step=0,
            before=weights,
            after=Weights(version=applied.version, checksum=applied.checksum),
            checkpoint=applied.checkpoint.name,
            groups=("b/0",),
            accepted=tuple(accepted),
            normalizer=12,
            gradient_checksum=applied.gradient_checksum,
            metrics={"grad_norm": applied.grad_norm or 0.0},
        ),
    )
    rig.core.commit(m.Commit(batch=batch, version=applied.version, **BOOT))


def replayed(rig: Rig, records: Engine, batch: str) -> BatchReplay:
    return replay(
        recorded(records, batch), base=rig.policy, checkpoints=rig.folder / "checkpoints", objects=rig.objects
    )


def test_one_cell_and_two_cells_are_repeated_to_the_last_bit(rig: Rig, records: Engine):
    train(rig, records, "first", {rig.core: [3, 1, 0, 2]})
    train(rig, records, "second", {rig.core: [5, 4], rig.satellite(): [8, 6, 7]})
    for batch, cells in (("first", (0,)), ("second", (0, 1))):
        result = replayed(rig, records, batch)
        assert result.same_bits
        assert result.norm == result.recorded_norm
        assert result.cells == cells


@pytest.mark.parametrize("reference", ["base", "a folder"])
def test_every_term_of_the_loss_is_repeated(rig: Rig, records: Engine, policy: Path, untied_policy: Path, reference):
    """Truncated weights and the pull to a reference too: of the second update, so that `base` is another policy."""
    folder = "base" if reference == "base" else str(untied_policy)
    terms = {"kl_weight": 0.4, "reference": folder, "truncate_ratio": 1.05}
    train(rig, records, "first", {rig.core: [3, 1]})
    train(rig, records, "second", {rig.core: [5, 4], rig.satellite(): [8, 6, 7]}, SETTINGS.model_copy(update=terms))
    result = replayed(rig, records, "second")
    assert result.same_bits
    assert result.norm == result.recorded_norm
    with records.begin() as connection:
        settings = {**SETTINGS.model_dump(mode="json"), **terms, "kl_weight": 0.0}
        connection.execute(update(batches_table).where(batches_table.c.batch == "second").values(settings=settings))
    assert not replayed(rig, records, "second").same_bits, "the KL term is in the gradient that was applied"


def test_another_order_is_told_from_another_gradient(rig: Rig, records: Engine):
    train(rig, records, "first", {rig.core: [3, 1, 0, 2, 9, 7]})
    with records.begin() as connection:
        connection.execute(update(claims).values(done_at=claims.c.micro_step))
    shuffled = replayed(rig, records, "first")
    assert shuffled.norm_error < 1e-6
    step = decode(rig.objects.read("micro-steps/first/2.safetensors"))
    step.behaviour_logprobs[step.targets] -= 0.05
    with records.begin() as connection:
        ref = rig.objects.put("micro-steps/first/2.safetensors", encode(step))
        changed = update(micro_steps).where(micro_steps.c.micro_step == 2)
        connection.execute(changed.values(sha256=ref.sha256))
    drifted = replayed(rig, records, "first")
    assert not drifted.same_bits
    assert drifted.norm_error > 1e-5


def test_what_cannot_be_replayed_says_why(rig: Rig, records: Engine):
    train(rig, records, "first", {rig.core: [1, 2]})
    train(rig, records, "second", {rig.core: [3]})
    with pytest.raises(InvalidInput, match="the run has first, second"):
        recorded(records, "third")
    for kept in (rig.folder / "checkpoints").glob("v00000001-*"):
        kept.rename(rig.folder / "away")
    with pytest.raises(VersionMismatch, match="keep_checkpoints"):
        replayed(rig, records, "second")
    rig.objects.put("micro-steps/first/1.safetensors", b"other")
    with pytest.raises(ChecksumMismatch, match="micro-steps/first/1"):
        replayed(rig, records, "first")
    with records.begin() as connection:
        connection.execute(update(claims).values(done_at=None))
    with pytest.raises(AuditFailure, match="2 micro-steps counted, 0 claims"):
        recorded(records, "first")

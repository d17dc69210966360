"""Batches, claims and updates: each is recorded once, whoever repeats a step."""

import pytest
from sqlalchemy import insert, select

from infra.records import batches, schema
from workflows.messages.batch import Accepted, CommitBatch, OpenedBatch
from workflows.messages.errors import VersionMismatch
from workflows.messages.scheduling import Weights

BASE, NEXT = Weights(version=0, checksum="base"), Weights(version=1, checksum="next")
BATCH = "r/batch/b/0"
OPENED = OpenedBatch(run="r", batch=BATCH, burst="b", step=0, weights=BASE)
COMMIT = CommitBatch(
    run="r",
    batch=BATCH,
    burst="b",
    step=0,
    before=BASE,
    after=NEXT,
    checkpoint="v1",
    groups=("b/0000",),
    accepted=(Accepted(index=0, attempt=1, cell=0, boot_epoch=1),),
    normalizer=2,
    metrics={"grad_norm": 1.5},
)


def rows(database, table):
    with database.connect() as connection:
        return connection.execute(select(table)).all()


@pytest.fixture
def opened(database):
    group = {"group_id": "b/0000", "run": "r", "burst": "b", "group_index": 0, "sequence": 0, "admitted_at": 1.0}
    with database.begin() as connection:
        connection.execute(insert(schema.groups).values(**group, admitted_version=0, valid=2, members=[]))
    batches.record_base(database, BASE)
    for _ in range(2):
        batches.open_batch(database, OPENED)
    return database


def test_a_commit_is_recorded_once_with_its_groups_and_update(opened):
    for _ in range(2):
        batches.commit_batch(opened, COMMIT)
    (batch,) = rows(opened, schema.batches)
    assert (batch.version_before, batch.version_after, batch.groups, batch.normalizer) == (0, 1, ["b/0000"], 2)
    assert batch.accepted == [{"index": 0, "attempt": 1, "cell": 0, "boot_epoch": 1}]
    (group,) = rows(opened, schema.groups)
    assert (group.batch, group.consumed_version) == (BATCH, 0)
    assert [row.version for row in rows(opened, schema.updates)] == [0, 1]
    assert batches.committed_weights(opened) == (NEXT, "v1")
    assert batches.checkpoint_of(opened, NEXT) == "v1"
    assert batches.checkpoint_of(opened, Weights(version=1, checksum="other")) is None


def test_a_commit_counts_what_went_in_from_the_rows(opened):
    """Trained executions by the versions since their oldest target; micro-steps by the cell that counted."""
    ages = [(0, 5, None), (2, 5, None), (2, 9, None), (1, 5, "stale"), (3, 0, None)]
    members = [
        {"execution": f"e{k}", "outcome": "scored", "reward": 1.0, "advantage": 0.5, "staleness": 0}
        | {"target_tokens": targets, "left_out": left_out, "oldest_version": 3 - age, "newest_version": 3, "age": age}
        for k, (age, targets, left_out) in enumerate(ages)
    ]
    before, after = Weights(version=3, checksum="three"), Weights(version=4, checksum="four")
    done = [Accepted(index=k, attempt=1, cell=k % 2, boot_epoch=1) for k in range(3)]
    other = OPENED.model_copy(update={"batch": "r/batch/b/1", "step": 1, "weights": before})
    batches.open_batch(opened, other)
    with opened.begin() as connection:
        connection.execute(schema.groups.update().values(members=members))
    change = {"batch": other.batch, "before": before, "after": after, "accepted": tuple(done)}
    batches.commit_batch(opened, COMMIT.model_copy(update=change))
    (row,) = [row for row in rows(opened, schema.batches) if row.batch == other.batch]
    assert row.metrics == {
        "grad_norm": 1.5,
        "micro_steps_by_cell": {"0": 2.0, "1": 1.0},
        "staleness_executions": {"0": 1.0, "2": 2.0},
    }
    assert (row.checksum_before, row.checksum_after) == ("three", "four")


def test_another_update_of_the_same_version_is_refused_whole(opened):
    batches.commit_batch(opened, COMMIT)
    other = OPENED.model_copy(update={"batch": "r/batch/b/1", "step": 1})
    batches.open_batch(opened, other)
    clash = COMMIT.model_copy(update={"batch": other.batch, "after": Weights(version=1, checksum="other")})
    with pytest.raises(VersionMismatch):
        batches.commit_batch(opened, clash)
    assert [row.batch for row in rows(opened, schema.batches) if row.committed_at is not None] == [BATCH]
    assert rows(opened, schema.groups)[0].batch == BATCH


def test_a_batch_without_an_update_changes_no_version(opened):
    batches.commit_batch(opened, COMMIT.model_copy(update={"after": BASE, "checkpoint": ""}))
    assert batches.committed_weights(opened) == (BASE, "")


def test_a_run_starts_from_one_set_of_weights(database):
    assert batches.committed_weights(database) is None
    for _ in range(2):
        batches.record_base(database, BASE)
    with pytest.raises(VersionMismatch):
        batches.record_base(database, Weights(version=0, checksum="other"))


def test_the_first_publish_of_a_version_counts(opened):
    batches.commit_batch(opened, COMMIT)
    batches.mark_published(opened, 1)
    first = rows(opened, schema.updates)
    batches.mark_published(opened, 1)
    assert rows(opened, schema.updates) == first
    assert [row.published_at is not None for row in first] == [False, True]


def test_a_claim_is_replaced_by_a_newer_claimant_and_finished(database):
    claim = {"batch": BATCH, "micro_step": 0, "attempt": 1, "version": 0}
    batches.add_claim(database, **claim, cell=0, boot_epoch=1)
    batches.add_claim(database, **claim, cell=1, boot_epoch=2)
    batches.add_claim(database, **claim | {"attempt": 2}, cell=0, boot_epoch=1)
    batches.finish_claim(database, batch=BATCH, micro_step=0, attempt=1, metrics={"loss": 0.5})
    found = sorted(rows(database, schema.claims), key=lambda row: row.attempt)
    assert [(row.cell, row.boot_epoch, row.done_at is not None, row.metrics) for row in found] == [
        (1, 2, True, {"loss": 0.5}),
        (0, 1, False, None),
    ]

"""Batches, claims, updates: what a training batch writes, and the committed weights a restarted core starts from."""

import time
from collections import Counter

from sqlalchemy import Connection, Engine, insert, select, update
from sqlalchemy.exc import IntegrityError

from infra.records.groups import GroupMember
from infra.records.schema import batches, claims, groups, updates
from workflows.messages.batch import CommitBatch, Figures, OpenedBatch
from workflows.messages.errors import VersionMismatch
from workflows.messages.scheduling import Weights


def open_batch(engine: Engine, opened: OpenedBatch) -> None:
    """Record a batch as opened, once."""
    with engine.begin() as connection:
        if connection.execute(select(batches.c.batch).where(batches.c.batch == opened.batch)).first():
            return
        connection.execute(
            insert(batches).values(
                batch=opened.batch,
                run=opened.run,
                burst=opened.burst,
                step=opened.step,
                opened_at=time.time(),
                version_before=opened.weights.version,
                checksum_before=opened.weights.checksum,
                settings=opened.training.model_dump(mode="json"),
            )
        )


def commit_batch(engine: Engine, commit: CommitBatch) -> None:
    """Record in one transaction: what counted, the groups consumed, and the update. Repeating it changes nothing.

    Raises VersionMismatch when another update of the same version is committed already.
    """
    now = time.time()
    with engine.begin() as connection:
        row = connection.execute(select(batches.c.committed_at).where(batches.c.batch == commit.batch)).first()
        if row is not None and row.committed_at is not None:
            return
        connection.execute(
            update(batches)
            .where(batches.c.batch == commit.batch)
            .values(
                window_closed_at=now,
                committed_at=now,
                version_after=commit.after.version,
                checksum_after=commit.after.checksum,
                groups=list(commit.groups),
                accepted=[done.model_dump(mode="json") for done in commit.accepted],
                normalizer=commit.normalizer,
                gradient_checksum=commit.gradient_checksum,
                metrics=commit.metrics | _what_went_in(connection, commit),
            )
        )
        connection.execute(
            update(groups)
            .where(groups.c.group_id.in_(commit.groups))
            .values(batch=commit.batch, consumed_version=commit.before.version)
        )
        if commit.after != commit.before:
            _add_update(connection, commit.after, commit.batch, commit.checkpoint, now)


def _what_went_in(connection: Connection, commit: CommitBatch) -> Figures:
    """Counted here, from rows and not from messages: micro-steps of each cell, and the trained executions by the
    versions between their oldest target and the one being trained."""
    cells = Counter(str(done.cell) for done in commit.accepted)
    ages: Counter[str] = Counter()
    query = select(groups.c.members).where(groups.c.group_id.in_(commit.groups), groups.c.no_signal.is_(None))
    for members in connection.execute(query).scalars():
        for member in map(GroupMember.model_validate, members):
            if member.left_out is None and member.target_tokens and member.oldest_version is not None:
                ages[str(commit.before.version - member.oldest_version)] += 1
    return {"micro_steps_by_cell": _numbers(cells), "staleness_executions": _numbers(ages)}


def _numbers(counts: Counter[str]) -> dict[str, float]:
    return {key: float(count) for key, count in sorted(counts.items(), key=lambda item: int(item[0]))}


def mark_published(engine: Engine, version: int) -> None:
    """Every serving cell has verified `version`; the first time counts."""
    with engine.begin() as connection:
        connection.execute(
            update(updates)
            .where(updates.c.version == version, updates.c.published_at.is_(None))
            .values(published_at=time.time())
        )


def record_base(engine: Engine, weights: Weights) -> None:
    """The weights a run starts from count as committed. Raises VersionMismatch if the run started from others."""
    try:
        with engine.begin() as connection:
            _add_update(connection, weights, None, "", time.time())
    except IntegrityError:
        with engine.connect() as connection:
            _require_same(connection, weights)


def committed_weights(engine: Engine) -> tuple[Weights, str] | None:
    """The newest committed version and its checkpoint's name (empty: the base model); None before the core's boot."""
    query = select(updates).order_by(updates.c.version.desc()).limit(1)
    with engine.connect() as connection:
        row = connection.execute(query).first()
    if row is None:
        return None
    return Weights(version=row.version, checksum=row.checksum), row.checkpoint


def checkpoint_of(engine: Engine, weights: Weights) -> str | None:
    """Name of the committed checkpoint with exactly these weights (empty: the base model), or None."""
    with engine.connect() as connection:
        row = connection.execute(select(updates).where(updates.c.version == weights.version)).first()
    return row.checkpoint if row is not None and row.checksum == weights.checksum else None


def add_claim(
    engine: Engine, *, batch: str, micro_step: int, attempt: int, cell: int, boot_epoch: int, version: int
) -> None:
    """A cell has claimed an attempt of a micro-step; the claim of the same attempt by a newer claimant replaces it."""
    key = {"batch": batch, "micro_step": micro_step, "attempt": attempt}
    values = {"cell": cell, "boot_epoch": boot_epoch, "version": version, "claimed_at": time.time()}
    with engine.begin() as connection:
        changed = connection.execute(update(claims).filter_by(**key).values(**values))
        if changed.rowcount == 0:
            connection.execute(insert(claims).values(**key, **values))


def finish_claim(
    engine: Engine, *, batch: str, micro_step: int, attempt: int, metrics: Figures, checksum: str = ""
) -> None:
    """The claimed attempt is done, with weights of this checksum."""
    key = {"batch": batch, "micro_step": micro_step, "attempt": attempt}
    done = {"done_at": time.time(), "metrics": metrics, "checksum": checksum or None}
    with engine.begin() as connection:
        connection.execute(update(claims).filter_by(**key).values(**done))


def _add_update(connection: Connection, weights: Weights, batch: str | None, checkpoint: str, now: float) -> None:
    row = connection.execute(select(updates).where(updates.c.version == weights.version)).first()
    if row is not None:
        _require_same(connection, weights)
        return
    connection.execute(
        insert(updates).values(
            version=weights.version,
            batch=batch,
            checksum=weights.checksum,
            checkpoint=checkpoint,
            committed_at=now,
        )
    )


def _require_same(connection: Connection, weights: Weights) -> None:
    row = connection.execute(select(updates).where(updates.c.version == weights.version)).first()
    if row is None or row.checksum != weights.checksum:
        raise VersionMismatch(f"version {weights.version} is committed with another checksum")

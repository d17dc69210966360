"""Claims, acceptance and updates: each micro-step counted once, at one version, one update a batch (5 and 6)."""

from collections import Counter, defaultdict
from itertools import pairwise

from sqlalchemy import Engine, select

from infra.audit.cores import Cores, check_cores
from infra.audit.groups import BatchFact, GroupFact
from infra.audit.reader import scalar, stream
from infra.audit.report import Findings
from infra.audit.targets import TargetAudit
from infra.audit.timelines import SKEW_SECONDS, Timelines
from infra.records import schema


def check_batches(
    engine: Engine,
    findings: Findings,
    targets: TargetAudit,
    timelines: Timelines,
    batches: list[BatchFact],
    groups: dict[str, GroupFact],
) -> None:
    """Check every committed batch, and that together they make one line of versions."""
    committed = [batch for batch in batches if batch.committed_at is not None]
    counts = {batch.batch: targets.check_batch(batch) for batch in committed}
    cores = check_cores(engine, findings)
    joins = sum(_check_acceptance(engine, findings, timelines, cores, batch) for batch in committed)
    for batch in committed:
        _check_normalizer(engine, findings, batch, groups)
    _check_versions(engine, findings, committed, counts)
    findings.figures |= {
        "batches": len(committed),
        "target_tokens": targets.target_tokens,
        "satellite_joins": joins,
    }


def _check_acceptance(engine: Engine, findings: Findings, timelines: Timelines, cores: Cores, batch: BatchFact) -> int:
    """Returns how many satellites took part in the batch."""
    subject = batch.batch
    steps, claims = schema.micro_steps, schema.claims
    packed: set[int] = set()
    for row in stream(engine, select(steps).where(steps.c.batch == subject)):
        packed.add(row.micro_step)
        detail = f"micro-step {row.micro_step} of {row.group_id}"
        findings.expect(row.group_id in batch.groups, "micro-step-of-other-group", subject, detail)
    claimed = {
        (row.micro_step, row.attempt, row.cell, row.boot_epoch): row
        for row in stream(engine, select(claims).where(claims.c.batch == subject))
    }
    accepted = scalar(engine, select(schema.batches.c.accepted).where(schema.batches.c.batch == subject)) or ()
    counted = Counter(entry["index"] for entry in accepted)
    for index, times in counted.items():
        findings.expect(times == 1, "micro-step-accepted-twice", subject, f"micro-step {index}, {times} times")
        findings.expect(index in packed, "accepted-unknown", subject, f"micro-step {index}")
    for index in sorted(packed - counted.keys()):
        findings.add("micro-step-not-accepted", subject, f"micro-step {index}")
    for entry in accepted:
        key = (entry["index"], entry["attempt"], entry["cell"], entry["boot_epoch"])
        text = "micro-step {}, attempt {}, cell {}, boot epoch {}".format(*key)
        booted = timelines.boot_of(entry["cell"], entry["boot_epoch"])
        findings.expect(booted is not None, "boot-missing", subject, text)
        claim = claimed.get(key)
        if claim is None:
            findings.add("claim-missing", subject, text)
            continue
        detail = f"{text}: computed at {claim.version}, the batch trains {batch.version_before}"
        findings.expect(claim.version == batch.version_before, "claim-version", subject, detail)
        until = (batch.committed_at or 0.0) + SKEW_SECONDS
        done = claim.done_at is not None and claim.claimed_at <= claim.done_at <= until
        findings.expect(done, "claim-unfinished", subject, f"{text}: done at {claim.done_at}")
    return len({entry["cell"] for entry in accepted} - {cores.at(batch.committed_at or 0.0)})


def _check_normalizer(engine: Engine, findings: Findings, batch: BatchFact, groups: dict[str, GroupFact]) -> None:
    own = sum(groups[name].valid for name in batch.groups if name in groups and groups[name].has_signal)
    query = select(schema.batches.c.normalizer).where(schema.batches.c.batch == batch.batch)
    recorded = scalar(engine, query)
    right = recorded == own or (recorded is None and own == 0)
    findings.expect(right, "normalizer-differs", batch.batch, f"recorded {recorded}, is {own}")


def _check_versions(engine: Engine, findings: Findings, committed: list[BatchFact], targets: dict[str, int]) -> None:
    versions_of: dict[str, list[int]] = defaultdict(list)
    rows = list(stream(engine, select(schema.updates).order_by(schema.updates.c.version)))
    for row in rows:
        if row.batch is not None:
            versions_of[row.batch].append(row.version)
    for before, after in pairwise(rows):
        detail = f"version {after.version} after {before.version}, committed at {after.committed_at}"
        following = after.version == before.version + 1 and after.committed_at >= before.committed_at
        findings.expect(following, "update-gap", f"version {after.version}", detail)
    for checksum, count in Counter(row.checksum for row in rows).items():
        findings.expect(count == 1, "checksum-repeated", checksum, f"{count} versions")
    for batch in committed:
        made = versions_of.get(batch.batch, [])
        findings.expect(len(made) <= 1, "update-repeated", batch.batch, f"versions {made}")
        detail = f"{targets[batch.batch]} targets, {batch.version_before} -> {batch.version_after}, updates {made}"
        if targets[batch.batch] == 0:
            still = batch.version_after == batch.version_before and not made
            findings.expect(still, "update-without-targets", batch.batch, detail)
        else:
            stepped = batch.version_after == batch.version_before + 1 and batch.version_after in made
            findings.expect(stepped, "update-missing", batch.batch, detail)
    for before, after in pairwise(committed):
        detail = f"{before.batch} left version {before.version_after}, it starts at {after.version_before}"
        findings.expect(after.version_before == before.version_after, "version-went-back", after.batch, detail)
    findings.figures["updates"] = sum(map(len, versions_of.values()))

"""One audit from beginning to end."""

from pathlib import Path

from sqlalchemy import Engine, func, select

from infra.audit.cancellations import read_cancellations, read_shuffled
from infra.audit.drift import check_checksums
from infra.audit.executions import check_executions
from infra.audit.groups import batches_in_order, check_groups
from infra.audit.moves import check_ledger
from infra.audit.reader import scalar, stream
from infra.audit.report import AuditReport, Findings
from infra.audit.requests import check_request_ids
from infra.audit.targets import TargetAudit
from infra.audit.timelines import Timelines
from infra.audit.updates import check_batches
from infra.objects import ObjectStore
from infra.records import schema
from infra.records.database import open_database
from infra.settings.run import load_run
from workflows.messages.errors import InvalidInput


def audit_run(run_dir: Path, *, at_rest: bool = False, advantage: str | None = None) -> AuditReport:
    """Audit the run recorded below `run_dir`. Raises InvalidInput when nothing is recorded there."""
    try:
        manifest = load_run(run_dir)
    except FileNotFoundError:
        raise InvalidInput(f"no run is recorded in {run_dir}", field="run") from None
    engine = open_database(manifest.database_url, create=True)
    try:
        store = ObjectStore(manifest.object_store_url)
        return audit_records(engine, store, run=manifest.run, at_rest=at_rest, advantage=advantage)
    finally:
        engine.dispose()


def audit_records(
    engine: Engine, store: ObjectStore, *, run: str = "", at_rest: bool = False, advantage: str | None = None
) -> AuditReport:
    """Audit any database and object store that hold one run.

    `at_rest`: nothing is running any more, so that what is still open is lost. `advantage`: the bursts' setting (grpo,
    dr_grpo, rloo); without it any of these is accepted that fits a whole group.
    A live run may be audited; what is written meanwhile can show as a fault that the next audit does not find.
    """
    findings = Findings()
    timelines = Timelines(engine, at_rest=at_rest)
    executions = check_executions(engine, findings, timelines, at_rest=at_rest)
    check_request_ids(engine, findings)
    batches = batches_in_order(engine)
    cancelled = read_cancellations(engine)
    groups = check_groups(
        engine,
        findings,
        executions,
        batches,
        cancelled=cancelled.bursts,
        shuffled=read_shuffled(engine),
        method=advantage,
    )
    check_ledger(engine, findings, executions, timelines, cancelled=cancelled.closed_while_queued, at_rest=at_rest)
    targets = TargetAudit(engine, store, findings, groups)
    check_batches(engine, findings, targets, timelines, batches, groups)
    check_checksums(engine, findings)
    _add_figures(engine, findings)
    findings.figures["executions"] = len(executions)
    findings.figures["groups"] = len(groups)
    return findings.report(run)


def _add_figures(engine: Engine, findings: Findings) -> None:
    totals = {"requests_moved": 0, "kv_tokens_reused": 0}
    transitions: dict[str, int] = {}
    for row in stream(engine, select(schema.transitions)):
        transitions[row.direction] = transitions.get(row.direction, 0) + 1
        for name in totals:
            totals[name] += (row.figures or {}).get(name, 0)
    findings.figures |= totals
    findings.figures["transitions"] = transitions
    for table in (schema.segments, schema.micro_steps, schema.claims):
        findings.figures[table.name] = scalar(engine, select(func.count()).select_from(table))

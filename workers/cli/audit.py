"""`gyre audit`: the invariants re-checked from the raw records of a run."""

import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.audit import AuditReport, audit_run
from workers.cli.runs import find_run


def audit(run: str | None = None, /, *, at_rest: bool = False, json_: bool = False) -> None:
    """Audit a run; exits with 1 when an invariant is broken.

    Parameters
    ----------
    run
        Folder or name of the run; without it the one last started.
    at_rest
        Nothing runs any more: an execution that is still open is a fault too.
    json_
        Print the whole report as JSON.
    """
    manifest = find_run(run, field="RUN")
    report = audit_run(manifest.folder, at_rest=at_rest)
    if json_:
        print(report.model_dump_json(indent=2))
    else:
        show(report, Console())
    sys.exit(0 if report.ok else 1)


def show(report: AuditReport, console: Console) -> None:
    """Findings by invariant, then the figures that were measured on the way."""
    if report.findings:
        table = Table(title=f"what run {report.run} breaks", title_justify="left")
        for column in ("invariant", "code", "subject", "detail"):
            table.add_column(column, overflow="fold")
        for finding in report.findings:
            table.add_row(str(finding.invariant), finding.code, escape(finding.subject), escape(finding.detail))
        console.print(table)
    for name, value in report.figures.items():
        console.print(f"{name}: {escape(str(value))}", highlight=False)
    total = sum(report.found.values())
    if report.ok and report.figures.get("executions") == 0:
        console.print(f"run {report.run}: there was nothing to check, no execution is recorded")
        return
    console.print(
        f"run {report.run}: every invariant holds" if report.ok else f"run {report.run}: {total} faults found"
    )

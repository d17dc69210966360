"""An audit report on a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from infra.audit.catalogue import CATALOGUE
from infra.audit.report import AuditReport


def render_report(report: AuditReport) -> RenderableType:
    """What `gyre audit` prints: the figures, then every finding, then the verdict."""
    figures = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in report.figures.items():
        shown = ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else str(value)
        figures.add_row(Text(name, style="dim"), Text(shown))
    if report.ok:
        return Group(figures, Text(f"run {report.run}: every invariant holds", style="green"))
    findings = Table("invariant", "fault", "times", "first at", box=None, padding=(0, 2, 0, 0))
    first = {finding.code: finding for finding in reversed(report.findings)}
    for code in sorted(report.found, key=lambda code: (CATALOGUE[code].invariant, code)):
        where = Text(f"{first[code].subject}\n{first[code].detail}")
        findings.add_row(str(CATALOGUE[code].invariant), Text(code, style="red"), str(report.found[code]), where)
    total = sum(report.found.values())
    return Group(figures, findings, Text(f"run {report.run}: {total} faults of {len(report.found)} kinds", style="red"))

"""What an audit says: findings and figures."""

from collections import Counter
from typing import Any

from pydantic import Field, JsonValue

from infra.audit.catalogue import CATALOGUE, VERSION_CODES
from workflows.messages.base import Message

KEPT_PER_CODE = 50
"""Findings kept of one code; the rest are counted only, so that a thoroughly broken run does not fill the memory."""


class Finding(Message):
    """One fault: `subject` is the id of what is wrong, `detail` the numbers that show it."""

    invariant: int
    code: str
    subject: str
    detail: str


class AuditReport(Message):
    """The result of one audit. `found` counts every finding by code, also those not kept in `findings`."""

    run: str
    findings: list[Finding] = []
    found: dict[str, int] = {}
    figures: dict[str, JsonValue] = Field({}, description="see docs/audit.md")

    @property
    def ok(self) -> bool:
        return not self.found

    def codes(self) -> frozenset[str]:
        """Codes of everything found."""
        return frozenset(self.found)


class Findings:
    """Collects findings and figures while an audit runs."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._found: Counter[str] = Counter()
        self.figures: dict[str, Any] = {}

    def add(self, code: str, subject: str, detail: str, times: int = 1) -> None:
        """Record a fault of the catalogue, found `times` times at `subject`."""
        if self._found[code] < KEPT_PER_CODE:
            fault = CATALOGUE[code]
            text = f"{fault.meaning}: {detail}"
            self._kept.append(Finding(invariant=fault.invariant, code=code, subject=subject, detail=text))
        self._found[code] += times

    def expect(self, holds: bool, code: str, subject: str, detail: str) -> None:
        """Record a fault unless `holds`."""
        if not holds:
            self.add(code, subject, detail)

    def report(self, run: str) -> AuditReport:
        """The report of what has been collected."""
        self.figures["targets_trained_twice"] = self._found["target-trained-twice"]
        self.figures["version_mismatches"] = sum(self._found[code] for code in VERSION_CODES)
        kept = sorted(self._kept, key=lambda finding: (finding.invariant, finding.code))
        return AuditReport(run=run, findings=kept, found=dict(+self._found), figures=self.figures)

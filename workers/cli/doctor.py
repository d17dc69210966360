"""`gyre doctor`: is this machine ready?"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from harness_adapters.mini_swe_agent import MiniSweAgent
from infra.doctor import Finding, Verdict, examine
from infra.doctor.findings import fail, ok
from workers.supervisor.run_folder import CHECKOUT

_MARKS = {Verdict.OK: "[green]ok  [/]", Verdict.WARN: "[yellow]warn[/]", Verdict.FAIL: "[red]FAIL[/]"}


def doctor(*, json_: bool = False) -> None:
    """Check this machine; exits with 1 when a stack will not work here.

    Parameters
    ----------
    json_
        Print the findings as JSON.
    """
    findings = [*examine(CHECKOUT), check_harness(CHECKOUT / "var" / "harness")]
    if json_:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        show(findings, Console())
    sys.exit(any(finding.verdict is Verdict.FAIL for finding in findings))


def check_harness(root: Path) -> Finding:
    """The demo's harness lives in an environment of its own below `root`."""
    adapter = MiniSweAgent()
    if adapter.environment_of(root).is_current():
        return ok("harness", f"{adapter.name} {adapter.version}")
    return fail("harness", f"{adapter.name} {adapter.version} is not installed below {root}", "make setup")


def show(findings: Sequence[Finding], console: Console) -> None:
    """One line a finding, and the command that fixes it below."""
    for finding in findings:
        line = f"{_MARKS[finding.verdict]} {finding.name:15} {escape(finding.detail)}"
        console.print(line, soft_wrap=True, highlight=False)
        if finding.fix:
            console.print(f"     {'':15} fix: {escape(finding.fix)}", soft_wrap=True, highlight=False)

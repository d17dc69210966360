"""`gyre doctor`: is this machine ready?"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from harness_adapters.generic import GenericCommand
from harness_adapters.mini_swe_agent import MiniSweAgent
from harness_adapters.registry import adapters
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
    findings = [*examine(CHECKOUT), *check_harnesses(CHECKOUT / "var" / "harness")]
    if json_:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        show(findings, Console())
    sys.exit(any(finding.verdict is Verdict.FAIL for finding in findings))


def check_harnesses(root: Path) -> list[Finding]:
    """The demo's harness must be there, below `root`; the others are shown if they are."""
    demo = MiniSweAgent()
    there = [
        f"{adapter.name} {adapter.version}"
        for adapter in adapters().values()
        if adapter.name not in (demo.name, GenericCommand.name) and adapter.installed(root)
    ]
    others = ok("other harnesses", ", ".join(there) or "none installed; gyre harness list shows what there is")
    if demo.installed(root):
        return [ok("harness", f"{demo.name} {demo.version}"), others]
    detail = f"{demo.name} {demo.version} is not installed below {root}"
    return [fail("harness", detail, "make setup"), others]


def show(findings: Sequence[Finding], console: Console) -> None:
    """One line a finding, and the command that fixes it below."""
    for finding in findings:
        line = f"{_MARKS[finding.verdict]} {finding.name:15} {escape(finding.detail)}"
        console.print(line, soft_wrap=True, highlight=False)
        if finding.fix:
            console.print(f"     {'':15} fix: {escape(finding.fix)}", soft_wrap=True, highlight=False)

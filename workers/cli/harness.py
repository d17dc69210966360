"""`gyre harness`: which harnesses there are, install one, try one."""

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from harness_adapters.registry import adapter_named, adapters
from infra.processes.isolation import OPEN, isolation_here
from infra.records.calls import RecordedCall
from workers.cli.arguments import Amount
from workers.rehearsal import Rehearsal, Stage, Try, parts_of
from workers.rehearsal.model import write_model
from workers.supervisor.run_folder import CHECKOUT
from workflows.messages.burst import HarnessChoice
from workflows.messages.errors import InvalidSpec
from workflows.messages.execution import EndReason

ROOT = CHECKOUT / "var" / "harness"
FAULTY = (EndReason.CRASHED, EndReason.NEVER_RAN)
"""Ends after which a try has failed, whatever was called or written."""
_STYLES = {"main": "bold", "sub-agent": "cyan", "main-summary": "yellow", "sub-agent-summary": "yellow", "side": "dim"}


def harness_list() -> None:
    """Every harness there is an adapter for."""
    table = Table("harness", "version", "dialect", "installed", "settings", box=None)
    for adapter in adapters().values():
        there = "[green]yes[/]" if adapter.installed(ROOT) else f"[dim]gyre harness install {adapter.name}[/]"
        table.add_row(adapter.name, adapter.version, adapter.dialect, there, ", ".join(sorted(adapter.settings)))
    Console().print(table)


def harness_install(name: str) -> None:
    """Install the pinned version of a harness in a place of its own.

    Parameters
    ----------
    name
        As `gyre harness list` shows it.
    """
    adapter = adapter_named(name)
    adapter.install(ROOT)
    Console().print(f"{adapter.name} {adapter.version} is installed")


def harness_try(
    name: str,
    *,
    part: str = "repair",
    command: str = "",
    drain: bool = False,
    keep: Path | None = None,
    seconds: Amount = 300,
) -> None:
    """Run a harness once, for real, against the proxy and a scripted policy, and show its calls.

    Parameters
    ----------
    name
        As `gyre harness list` shows it.
    part
        repair (one agent writes a file), errand (a sub-agent does), compact (a summary is asked for).
    command
        The command line of the harness `command`. It is split as a shell would, but no shell runs it: for pipes,
        variables or `&&` write `sh -c '...'`.
    drain
        Let the engine leave in mid-answer, once.
    keep
        A folder for everything that is left: workspace, home, output, records.
    seconds
        How long it may take.
    """
    console = Console()
    adapter_named(name)
    parts = parts_of(name)
    if part not in parts:
        raise InvalidSpec(f"{name} has no such part; it has {sorted(parts)}", field="part")
    choice = HarnessChoice(name=name, settings={"command": command} if command else {})
    folder = keep or Path(tempfile.mkdtemp(prefix="gyre-try-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise InvalidSpec(f"{folder} is not empty", field="keep")
    try:
        outcome = asyncio.run(_rehearse(folder.absolute(), choice, part, drain, seconds, console))
        show(outcome, console)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if outcome.run.end in FAULTY:
        sys.exit(1)
    expected = sorted(parts[part].roles)
    if expected and sorted(call.role for call in outcome.calls) != expected:
        console.print(f"[red]expected calls:[/] {', '.join(expected)}")
        sys.exit(1)


async def _rehearse(
    folder: Path, choice: HarnessChoice, part: str, drain: bool, seconds: float, console: Console
) -> Try:
    chosen = parts_of(choice.name)[part]
    model = write_model(folder / "model", CHECKOUT / "docs")
    engines, context = 2 if drain else 1, chosen.context_tokens
    async with Stage(folder / "stage", model, chosen.script, engines=engines, context_tokens=context) as stage:
        rehearsal = Rehearsal(stage, ROOT, CHECKOUT, isolation_here() if sys.platform == "linux" else OPEN)

        def tell(text: str) -> None:
            console.print(f"[dim]{escape(text)}[/]", soft_wrap=True, highlight=False)

        return await rehearsal.run(choice, chosen, drains=int(drain), wall_seconds=seconds, told=tell)


def show(outcome: Try, console: Console) -> None:
    """How it ended, and the tree of its calls."""
    run = outcome.run
    said = f": {escape(run.detail)}" if run.detail else ""
    console.print(f"{outcome.spec.harness.name} [bold]{run.end}[/] after {run.seconds:.1f} s{said}", highlight=False)
    left = "nothing" if outcome.written is None else repr(outcome.written)
    console.print(f"left in out.txt: {escape(left)}", highlight=False)
    console.print(tree_of(outcome.calls))
    if run.end in FAULTY:
        silent = "" if outcome.calls else " before its first model call; no shell runs a command, sh -c '...' does"
        code = "" if run.exit_code is None else f" with exit code {run.exit_code}"
        console.print(f"[red]it {run.end.replace('_', ' ')}{code}{silent}[/]", highlight=False, soft_wrap=True)
        if outcome.stderr:
            console.print("its last words on standard error:", highlight=False)
            console.print(escape(outcome.stderr), highlight=False, soft_wrap=True)


def tree_of(calls: tuple[RecordedCall, ...]) -> Tree:
    """Calls below the call they continue; a new history hangs from the root."""
    root = Tree(f"{len(calls)} calls")
    branches: dict[str, Tree] = {}
    for call in calls:
        parent = branches.get(call.parent_call or "")
        goes_on = parent is not None and call.fork_reason is None
        text = f"[{_STYLES.get(call.role, '')}]{call.sequence} {call.role}[/] " if call.role in _STYLES else ""
        text += f"{call.fields['dialect']}, {call.prompt_tokens} tokens in ({call.shared_tokens} known), "
        text += f"{len(call.output_array)} out, {call.finish or call.state}"
        if call.fork_reason:
            text += f" [dim](a new history: {call.fork_reason})[/]"
        branches[call.call] = (parent if goes_on and parent is not None else root).add(text)
    return root

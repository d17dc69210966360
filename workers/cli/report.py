"""`gyre report`: one page for a run, with plots and the totals of its ledger."""

import json
from pathlib import Path

from rich.console import Console

from infra.records.database import open_database
from infra.report.account import Account, account
from infra.report.page import figures, page
from infra.report.reading import read
from infra.settings.run import RunManifest
from workers.cli.arguments import require_place
from workers.cli.runs import find_run
from workflows.messages.errors import InvalidInput


def report(run: str | None = None, /, *, out: Path | None = None, json_: bool = False) -> None:
    """Write one HTML page about a run that is over or still goes on.

    Parameters
    ----------
    run
        Folder or name of the run; without it the one last started.
    out
        File to write; without it `report.html` in the run's folder.
    json_
        Print what the page shows as JSON, and write no page.
    """
    manifest = find_run(run, field="RUN")
    target = out if out is not None else manifest.folder / "report.html"
    if not json_:
        require_place(target, "--out")
    found = account_of(manifest)
    if json_:
        print(json.dumps(figures(found)))
        return
    shown = page(found)
    try:
        target.write_text(shown, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write there: {error}", field="--out") from error
    console = Console()
    console.print(found.totals.verdict, highlight=False)
    console.print(f"the report is {target}", soft_wrap=True, highlight=False)


def account_of(manifest: RunManifest) -> Account:
    """The account of a run as its records are now. Raises InvalidInput for records of another version."""
    engine = open_database(manifest.database_url)
    try:
        return account(read(engine, manifest.fleet))
    finally:
        engine.dispose()

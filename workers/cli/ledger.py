"""`gyre ledger`: what the scheduler decided and refused, why, what came of it, and whether moving has paid."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy import Engine, select

from infra.records.database import open_database
from infra.records.schema import ledger as ledger_table
from infra.report import tables
from infra.report.account import Account, account
from infra.report.alarms import alarms
from infra.report.changes import Entry
from infra.report.page import figures, gain_text, totals_rows
from infra.report.reading import read
from workers.cli.arguments import require_place
from workers.cli.runs import find_run
from workflows.messages.errors import InvalidInput

SHOWN = 50
"""Entries that are shown without another wish."""


def ledger(
    run: str | None = None,
    /,
    *,
    run_dir: Path | None = None,
    kind: str | None = None,
    policy: str | None = None,
    cell: int | None = None,
    reason: str | None = None,
    since: str | None = None,
    until: str | None = None,
    last: int | None = None,
    transitions: bool = False,
    totals: bool = False,
    csv: Path | None = None,
    parquet: Path | None = None,
    json_: bool = False,
) -> None:
    """Show the ledger, oldest entry first.

    Parameters
    ----------
    run
        Folder or name of the run; without it the one last started.
    run_dir
        The same, by name.
    kind
        Only entries of this kind, such as move, refuse, stay, return, outcome, publish, reboot, safe_mode or alarm.
    policy
        Only decisions of this policy.
    cell
        Only entries about this cell.
    reason
        Only entries whose reasons contain this text.
    since
        Only from this moment on: a date and time, a time of the run's last day, or seconds after its begin (+90).
    until
        Only before this moment, written in the same ways.
    last
        How many entries, counted from the end, 0 means all; without it 50 are shown, and all exported.
    transitions
        Show or export the transitions instead of the decisions.
    totals
        Show what moving has gained and cost.
    csv
        Write the entries to this file, one flat row each, with what came of them.
    parquet
        The same as Parquet.
    json_
        One JSON object a line; with the policy's whole input for every entry.
    """
    if last is not None and last < 0:
        raise InvalidInput("how many entries, 0 for all", field="--last")
    require_place(csv, "--csv")
    require_place(parquet, "--parquet")
    exports = csv is not None or parquet is not None
    count = last if last is not None else 0 if exports else SHOWN
    manifest = find_run(run, field="RUN") if run is not None else find_run(run_dir)
    engine = open_database(manifest.database_url)
    try:
        found = account(read(engine, manifest.fleet))
        wanted = Wanted(
            kind=kind,
            policy=policy,
            cell=cell,
            reason=reason,
            since=_moment(since, found, "--since"),
            until=_moment(until, found, "--until"),
        )
        if totals:
            _show_totals(found, json_=json_)
        elif transitions:
            rows = [row for row in tables.transition_rows(found) if wanted.has_transition(row)]
            rows = rows[-count:] if count else rows
            _export(rows, tables.TRANSITIONS, csv, parquet)
            if not exports:
                _show_transitions(rows, manifest.run, json_=json_)
        else:
            entries = [entry for entry in found.records.entries if wanted.has(entry)]
            entries = entries[-count:] if count else entries
            if exports:
                _export(tables.decision_rows(found, entries), tables.DECISIONS, csv, parquet)
            elif json_:
                _print_entries(engine, entries, found)
            else:
                _show_entries(entries, found, manifest.run)
                if not entries and found.records.entries:
                    kinds = ", ".join(sorted({entry.kind for entry in found.records.entries}))
                    Console().print(f"none of {len(found.records.entries)} entries is meant; their kinds: {kinds}")
                _show_alarms(engine)
    finally:
        engine.dispose()


@dataclass(frozen=True)
class Wanted:
    """Which entries are meant; None: all. Moments in seconds since the epoch."""

    kind: str | None = None
    policy: str | None = None
    cell: int | None = None
    reason: str | None = None
    since: float | None = None
    until: float | None = None

    def has(self, entry: Entry) -> bool:
        said = " ".join(entry.reasons).lower()
        return (
            (self.kind is None or entry.kind == self.kind)
            and (self.policy is None or entry.policy == self.policy)
            and (self.cell is None or self.cell in entry.cells)
            and (self.reason is None or self.reason.lower() in said)
            and self._in_time(entry.at)
        )

    def has_transition(self, row: Mapping[str, Any]) -> bool:
        """Of the filters, those that a transition can answer: its direction is its kind."""
        return (
            (self.kind is None or row["direction"] == self.kind)
            and (self.cell is None or row["cell"] == self.cell)
            and (self.reason is None or self.reason.lower() in row["reason"].lower())
            and self._in_time(row["started_at"])
        )

    def _in_time(self, moment: float) -> bool:
        return (self.since is None or moment >= self.since) and (self.until is None or moment < self.until)


def _moment(text: str | None, found: Account, option: str) -> float | None:
    if text is None:
        return None
    try:
        if text.startswith("+"):
            return found.records.begin + float(text[1:])
        if "-" not in text:
            day = datetime.fromtimestamp(found.records.end).date()
            return datetime.fromisoformat(f"{day.isoformat()}T{text}").timestamp()
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise InvalidInput(f"{text!r} is no time: 2026-05-01T12:30, 12:30:00 or +90 (seconds)", field=option) from error


def _export(rows: list[tables.Row], columns: Mapping[str, type], csv: Path | None, parquet: Path | None) -> None:
    for path, write in ((csv, tables.write_csv), (parquet, tables.write_parquet)):
        if path is not None:
            try:
                write(rows, columns, path)
            except OSError as error:
                raise InvalidInput(f"cannot write there: {error}", field=str(path)) from error
            Console().print(f"{len(rows)} rows in {path}", soft_wrap=True, highlight=False)


def _print_entries(engine: Engine, entries: list[Entry], found: Account) -> None:
    """The rows as they were recorded, the policy's input included, and under `came_of_it` what followed."""
    chosen = {entry.token: entry for entry in entries}
    with engine.connect() as connection:
        rows = connection.execution_options(yield_per=100).execute(select(ledger_table).order_by(ledger_table.c.entry))
        for row in rows.mappings():
            entry = chosen.get(row["token"] or str(row["entry"]))
            if entry is not None:
                came = tables.decision_row(entry, found) if found.move_of(entry) else None
                print(json.dumps({**row, "came_of_it": came}))


def _show_entries(entries: list[Entry], found: Account, run: str) -> None:
    table = Table(title=f"ledger of {run}", title_justify="left")
    for column in ("time", "kind", "policy", "cells", "w / C_R", "why, and what came of it"):
        table.add_column(column, style="dim" if column == "time" else "", overflow="fold")
    for entry in entries:
        came = came_of(entry, found)
        table.add_row(
            time.strftime("%H:%M:%S", time.localtime(entry.at)),
            entry.kind,
            entry.policy,
            ", ".join(map(str, entry.cells)),
            "" if entry.waterlevel is None or entry.capacity is None else f"{entry.waterlevel} / {entry.capacity}",
            escape(entry.why) + (f"\n[dim]{escape(came)}[/]" if came else ""),
        )
    Console().print(table)


def _show_alarms(engine: Engine) -> None:
    with engine.connect() as connection:
        for line in alarms(connection):
            Console().print(f"[red]ALARM[/] {escape(line)}", soft_wrap=True, highlight=False)


def came_of(entry: Entry, found: Account) -> str:
    """What followed a decision that moved something, in one line; empty for every other entry."""
    move = found.move_of(entry)
    if move is None:
        return ""
    moved = found.moved_by(move.changes)
    parts = [move.result or ("nothing on record yet" if entry.cells else "")]
    if move.ended_at is not None:
        parts[0] += f" in {move.ended_at - entry.at:.1f} s"
    verbs = dict.fromkeys(verb for change in move.changes for verb in change.verbs)
    if verbs:
        parts.append(f"by {', '.join(verbs)}")
    if moved.requests:
        parts.append(f"requests moved: {moved.requests}, paused {moved.pause_seconds:.2f} s")
    if moved.kv_reused or moved.kv_recomputed:
        parts.append(f"KV {moved.kv_reused} reused, {moved.kv_recomputed} recomputed")
    if move.before is not None and move.after is not None:
        pairs = ((name, getattr(move.before, name), getattr(move.after, name)) for name in _PER_SECOND)
        parts += [f"{_PER_SECOND[name]} {one:.0f} to {two:.0f}/s" for name, one, two in pairs if one or two]
    return "; ".join(part for part in (*parts, gain_text(move)) if part)


_PER_SECOND = {"sampled_tokens": "sampled", "trained_tokens": "trained"}


def _show_transitions(rows: list[tables.Row], run: str, *, json_: bool) -> None:
    if json_:
        for row in rows:
            print(json.dumps(row))
        return
    table = Table(title=f"transitions of {run}", title_justify="left")
    for column in ("time", "cell", "change", "cells before and after", "what it moved"):
        table.add_column(column, overflow="fold")
    for row in rows:
        moved = (
            f"{row['requests_moved']} requests, paused {row['pause_seconds']:.2f} s" if row["requests_moved"] else ""
        )
        cached = f"KV {row['kv_tokens_reused']} reused, {row['kv_tokens_recomputed']} recomputed"
        read = f"{row['weights_bytes']:,} bytes of weights" if row["weights_bytes"] else ""
        known = cached if row["kv_tokens_reused"] or row["kv_tokens_recomputed"] else ""
        table.add_row(
            time.strftime("%H:%M:%S", time.localtime(row["started_at"])),
            str(row["cell"]),
            "\n".join(
                (row["direction"], f"{row['result']} in {row['seconds']:.2f} s", *row["verbs"].split(", "))
            ).strip(),
            f"{row['topology_before']}\n{row['topology_after']}",
            "\n".join(part for part in (moved, known, read) if part),
        )
    Console().print(table)


def _show_totals(found: Account, *, json_: bool) -> None:
    if json_:
        print(json.dumps(figures(found)["totals"]))
        return
    table = Table(title=f"totals of {found.records.run}", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in totals_rows(found):
        table.add_row(name, escape(text))
    console = Console()
    console.print(table)
    console.print(found.totals.verdict, highlight=False)

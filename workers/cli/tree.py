"""`gyre tree`: what an execution did, as a tree of branches, and which of its paths are trained."""

import difflib
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree as RichTree
from sqlalchemy import Engine, select

from activities.trajectories.artifact import decode_trajectory
from activities.trajectories.calls import load_calls
from activities.trajectories.growth import GrownTree, grow
from infra.objects import ObjectStore
from infra.records.database import open_database
from infra.records.executions import ExecutionRecords
from infra.records.schema import executions
from infra.settings.run import RunManifest
from infra.tokenizer import ChatTokenizer
from workers.cli.arguments import require_place
from workers.cli.runs import find_run
from workers.cli.tree_page import page
from workers.cli.tree_view import BranchView, CallView, TreeView, view
from workflows.messages.burst import Selection
from workflows.messages.errors import InvalidInput, InvalidSpec

MOST_NAMED = 5


def tree(
    execution: str,
    /,
    *,
    run_dir: Path | None = None,
    turns: bool = False,
    html: Path | None = None,
    json_: bool = False,
) -> None:
    """Show the tree of an execution.

    Parameters
    ----------
    execution
        Its id, or the end of it: `first/0003/01` is burst, group and member.
    run_dir
        Folder (or name) of the run; without it the one last started.
    turns
        List every call, not only the branches.
    html
        Write a page to click through, with the texts, to this file.
    json_
        Print it as JSON.
    """
    require_place(html, "--html")
    manifest = find_run(run_dir)
    engine = open_database(manifest.database_url)
    name = find_execution(engine, execution)
    grown, is_stored = grown_tree(manifest, engine, name)
    row = ExecutionRecords(engine).get(name)
    engine.dispose()
    tokenizer = _tokenizer(manifest)
    shown = view(
        grown,
        turn_starts=() if tokenizer is None else turn_starts(tokenizer),
        decode=tokenizer.decode if html is not None and tokenizer is not None else None,
    )
    if html is not None:
        html.write_text(page(shown), encoding="utf-8")
    if json_:
        print(json.dumps(shown.as_dict()))
        return
    show(shown, Console(), turns=turns)
    if not shown.branches:
        end = "it still runs" if row is None or row.closed_at is None else f"its end: {row.end_reason}"
        detail = f"; {row.detail}" if row is not None and row.detail else ""
        Console().print(f"[yellow]no model call was recorded; {escape(end + detail)}[/]", highlight=False)
        return
    if not is_stored:
        Console().print("[yellow]no trajectory is stored: what would be chosen now, with the default settings[/]")


def find_execution(engine: Engine, name: str) -> str:
    """The one execution whose id is `name` or ends with it. Raises InvalidInput for none or several."""
    column = executions.c.execution
    query = select(column).where((column == name) | column.endswith(f"/{name}", autoescape=True)).order_by(column)
    with engine.connect() as connection:
        found = list(connection.execute(query.limit(MOST_NAMED + 1)).scalars())
        if not found:
            near = nearest(name, list(connection.execute(select(column).order_by(column)).scalars()))
            raise InvalidInput(f"no execution {name}; there is {', '.join(near) or 'none at all'}", field="EXECUTION")
    if len(found) > 1:
        raise InvalidInput(f"{name} may be {', '.join(found[:MOST_NAMED])}", field="EXECUTION")
    return found[0]


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """The executions most like `name`, of the burst it names if there is such a one."""
    parts = name.split("/execution/", 1)[-1].split("/")
    same = [one for one in known if one.split("/execution/", 1)[-1].split("/")[0] == parts[0]] or known
    end = {one.split("/execution/", 1)[-1]: one for one in same}
    wanted = "/".join(part.zfill(4 if place == 1 else 2) if place else part for place, part in enumerate(parts))
    return [end[one] for one in difflib.get_close_matches(wanted, end, n=MOST_NAMED, cutoff=0.0)]


def grown_tree(manifest: RunManifest, engine: Engine, execution: str) -> tuple[GrownTree, bool]:
    """The tree from the records, with the settings its stored trajectory names; False: none is stored, or no longer."""
    row = ExecutionRecords(engine).get(execution)
    with engine.connect() as connection:
        recorded = load_calls(connection, execution)
        seed = connection.execute(select(executions.c.seed).where(executions.c.execution == execution)).scalar_one()
    try:
        if row is None or row.processed is None:
            raise FileNotFoundError(execution)
        header = decode_trajectory(ObjectStore(manifest.object_store_url).get(row.processed.payload)).header
    except FileNotFoundError:
        return grow(execution, recorded, seed=seed, selection=Selection()), False
    return grow(execution, recorded, seed=header.seed, selection=header.selection), True


def turn_starts(tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """The id that every message of this template begins with; none if there is no such id."""
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    ids = tokenizer.render(messages, add_generation_prompt=False)
    longer = tokenizer.render([*messages, *messages[1:]], add_generation_prompt=False)
    ordinary = set(tokenizer.encode_text("user\nassistant\nx\n"))
    for one in ids:
        once_each = longer.count(one) - ids.count(one) == 2 and ids.count(one) in (3, 4)
        if once_each and one not in ordinary and one not in tokenizer.end_of_turn_ids:
            return (one,)
    return ()


def show(shown: TreeView, console: Console, *, turns: bool) -> None:
    """Branches as a tree; a chosen path has its number and its targets."""
    root = RichTree(f"[bold]{escape(shown.execution)}[/]")
    for branch in shown.below(None):
        _add(root, shown, branch, turns)
    console.print(root)
    for name, value in shown.figures.items():
        console.print(f"{name}: {escape(f'{value:,}' if isinstance(value, int) else str(value))}", highlight=False)


def _add(parent: RichTree, shown: TreeView, branch: BranchView, turns: bool) -> None:
    waiting = [(parent, branch)]
    while waiting:
        above, one = waiting.pop(0)
        node = above.add(_branch_line(one))
        if turns:
            for call in one.calls:
                node.add(_call_line(call))
        waiting += [(node, child) for child in shown.below(one.branch)]


def _branch_line(branch: BranchView) -> str:
    calls = branch.calls
    tokens = sum(call.new_tokens + call.output_tokens for call in calls)
    said = sum(call.output_tokens for call in calls)
    where = f" after {branch.depth:,} shared tokens" if branch.depth else ""
    what = f"[bold]{escape(branch.role)}[/] · {escape(branch.reason)}{where}"
    line = f"{what} · {_turns(calls)} · {tokens:,} tokens, {said:,} said"
    if branch.path is not None:
        line += f" · [green]path {branch.path}[/]"
    if branch.targets:
        return f"{line} · [green]{branch.targets:,} targets[/]"
    reasons = sorted({call.dropped for call in calls})
    why = "not drawn" if branch.leaf else "" if "" in reasons else ", ".join(reasons)
    return f"{line} · [dim]not trained{': ' + escape(why) if why else ''}[/]"


def _turns(calls: list[CallView]) -> str:
    first, last = calls[0].sequence, calls[-1].sequence
    return f"call {first}" if len(calls) == 1 else f"{len(calls)} calls, {first} to {last}"


def _call_line(call: CallView) -> str:
    versions = ", ".join(f"v{version}: {count}" for version, count in call.versions)
    trains = ", ".join(f"path {path}: {count}" for path, count in call.trains.items())
    end = f"[green]{trains}[/]" if trains else f"[dim]{escape(call.dropped or 'not trained')}[/]"
    return f"{call.sequence} · {call.prompt_tokens:,} + {call.output_tokens:,} tokens ({versions}) · {end}"


def _tokenizer(manifest: RunManifest) -> ChatTokenizer | None:
    """None where the model's folder is no longer there; then messages are counted by turns and texts are missing."""
    try:
        return ChatTokenizer(manifest.model_folder)
    except InvalidSpec:
        return None

"""`gyre explain`: why an execution was trained, or why it was not, from its records."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.objects import ObjectStore
from infra.records.database import open_database
from infra.update_metrics import in_words
from workers.cli.explain_facts import Explanation, explain_execution
from workers.cli.runs import find_run
from workers.cli.tree import find_execution
from workflows.messages.execution import ProcessedExecution


def explain(execution: str, /, *, run_dir: Path | None = None, json_: bool = False) -> None:
    """Follow an execution into the gradient, or to where it stopped.

    Parameters
    ----------
    execution
        Its id, or the end of it: `first/0003/01` is burst, group and member.
    run_dir
        Folder (or name) of the run; without it the one last started.
    json_
        Print it as JSON.
    """
    manifest = find_run(run_dir)
    engine = open_database(manifest.database_url)
    name = find_execution(engine, execution)
    found = explain_execution(engine, ObjectStore(manifest.object_store_url), name)
    engine.dispose()
    if json_:
        print(found.model_dump_json(indent=2))
    else:
        show(found, Console())


def show(found: Explanation, console: Console) -> None:
    """The answer, then what it rests on, from the task to the micro-steps."""
    colour = "green" if found.trained else "yellow"
    console.print(f"[bold]{escape(found.execution)}[/]", soft_wrap=True, highlight=False)
    answer = "trained" if found.trained else "not trained"
    console.print(f"[{colour}]{answer}[/]: {escape(found.why)}", soft_wrap=True, highlight=False)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _lines(found):
        table.add_row(name, escape(value))
    console.print(table)
    if found.batch is not None and found.batch.micro_steps:
        steps = Table(title="micro-steps", title_justify="left")
        for column in ("index", "layout", "tokens", "targets", "paths", "counted", "sha256"):
            steps.add_column(column, overflow="fold")
        for step in found.batch.micro_steps:
            cells = (step.index, step.layout, step.tokens, step.targets, "; ".join(step.paths), step.counted or "no")
            steps.add_row(*(escape(str(cell)) for cell in cells), step.sha256[:12])
        console.print(steps)


def _lines(found: Explanation) -> list[tuple[str, str]]:
    lines = [
        ("task", f"{found.task}, by {found.harness}, attempt {found.attempt}"),
        ("end", f"{found.end or 'open'}; {found.outcome or 'not scored'}, reward {found.reward}"),
        ("grader", f"tests with sha256 {found.evaluator[:12]}" if found.evaluator else ""),
        ("said", found.detail),
        ("calls", "; ".join(f"{count} {what}" for what, count in found.calls.items()) or "none"),
    ]
    if (processed := found.processed) is not None:
        lines.append(("trajectory", _trajectory(processed, found.trajectory_sha256 or "")))
        if processed.unmerged_calls:
            apart = f"{processed.unmerged_calls} of {processed.calls} calls do not go on with a recorded history"
            lines.append(("merging", f"{apart}; `gyre tree` says why"))
    lines.append(("versions", f"dispatched at {found.dispatch_version}{_admitted(found)}"))
    if (group := found.group) is not None:
        rewards = ", ".join("-" if reward is None else f"{reward:g}" for reward in group.rewards)
        statistics = "" if group.mean is None else f"; mean {group.mean:.4g}, deviation {group.deviation or 0:.4g}"
        lines.append(("group", f"{group.group}, place {group.sequence}; rewards {rewards}{statistics}"))
        lines.append(("advantage", "none" if group.advantage is None else f"{group.advantage:+.4g}"))
    if (batch := found.batch) is not None:
        state = f"version {batch.version_before} to {batch.version_after}" if batch.committed else "open"
        lines.append(("batch", f"{batch.batch}, {state}, V = {batch.valid_executions}"))
        lines.append(("update", in_words(batch.figures)))
    return [(name, value) for name, value in lines if value]


def _trajectory(processed: ProcessedExecution, sha256: str) -> str:
    if not processed.calls:
        return "empty: the harness ended without a model call"
    if not processed.candidates:
        return f"empty: none of its {processed.calls} calls has an answer that can be trained; sha256 {sha256[:12]}"
    versions = f"sampled by versions {processed.oldest_version} to {processed.newest_version}"
    paths = f"{processed.paths} of {processed.candidates} paths chosen, {processed.target_tokens} targets"
    shared = f"{processed.expanded_tokens:,} tokens path by path, {processed.unique_tokens:,} shared"
    return f"{paths}; {shared}; {versions}; sha256 {sha256[:12]}"


def _admitted(found: Explanation) -> str:
    if found.group is None:
        return ""
    age = "" if found.group.age is None else f", its oldest token {found.group.age} versions old"
    return f", admitted at {found.group.admitted_version}{age}"

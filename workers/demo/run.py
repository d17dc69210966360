"""Running the demo: tasks, stack, evaluate, train, evaluate again, audit, report."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from temporalio.client import Client

from infra.audit import audit_run
from infra.demo.tasks import write_task_set
from infra.report.leaders import Leaders
from infra.report.reading import read_entries
from workers.demo.picture import draw
from workers.demo.plan import RUN, DemoPlan
from workers.demo.summary import PassRate, pass_rate, summarise
from workers.demo.watch import Watch
from workers.supervisor import LocalStack, StackEvent
from workers.supervisor.run_folder import set_aside
from workflows.messages import ids
from workflows.messages.burst import BurstSpec

EVALUATION_TIMEOUT = timedelta(minutes=30)
CAMPAIGN_TIMEOUT = timedelta(hours=2)


@dataclass(frozen=True)
class DemoResult:
    """Where the results lie, and what they say."""

    summary: dict[str, Any]
    before: PassRate
    after: PassRate
    summary_path: Path
    picture_path: Path


async def run_demo(
    plan: DemoPlan, folder: Path, console: Console, *, on_event: Callable[[StackEvent], None] | None = None
) -> DemoResult:
    """The whole demo in `folder`. Raises Transient when the stack never works, and whatever makes a burst fail."""
    started = time.time()
    folder.mkdir(parents=True, exist_ok=True)
    tasks = folder / "tasks"
    if not tasks.exists():
        console.print(f"making {plan.training_tasks} training and {plan.heldout_tasks} held-out tasks")
        write_task_set(tasks, train=plan.training_tasks, heldout=plan.heldout_tasks, seed=plan.seed)
    run_dir = folder / "run"
    set_aside(run_dir)
    async with LocalStack(plan.fleet(tasks), run_dir, on_event=on_event) as stack:
        await stack.ready()
        console.print(f"the stack is up after {time.time() - started:.0f} s; web UI {stack.manifest.temporal_ui}")
        loop_started = time.time()
        watch = Watch(stack.client, stack.records, RUN, console)
        async with watch.showing():
            evaluations = await _loop(plan, stack.client, watch)
        loop_seconds = time.time() - loop_started
        watch.stage = "audit"
        summary = summarise(stack.records, audit_run(run_dir, at_rest=True), evaluations)
        summary["peak_pss_bytes"] = stack.peak_pss_bytes
        with stack.records.connect() as connection:
            leaders = Leaders(read_entries(connection))
        before, after = (pass_rate(stack.records, evaluations[name]) for name in ("before", "after"))
    summary["loop_seconds"] = round(loop_seconds, 1)
    summary["wall_seconds"] = round(time.time() - started, 1)
    picture = folder / "demo.png"
    draw(watch.looks, summary["steps"], leaders, picture)
    path = folder / "summary.json"
    path.write_text(json.dumps(summary, indent=2) + "\n")
    return DemoResult(summary, before, after, path, picture)


async def _loop(plan: DemoPlan, client: Client, watch: Watch) -> dict[str, str]:
    """Evaluate, train, evaluate. Returns which burst is which evaluation."""
    evaluations = {"before": ("evaluate-before", 1.0), "after": ("evaluate-after", 1.0)}
    if plan.greedy:
        evaluations |= {"greedy_before": ("greedy-before", 0.0), "greedy_after": ("greedy-after", 0.0)}
    for key in ("before", "greedy_before"):
        if key in evaluations:
            name, temperature = evaluations[key]
            watch.stage = f"evaluating before ({'greedy' if temperature == 0 else 'sampled'})"
            await _run_burst(client, plan.evaluation(name, temperature=temperature))
    campaign = plan.campaign()
    watch.stage = f"training: {plan.bursts} bursts of {plan.steps} updates"
    await client.execute_workflow(
        "Campaign",
        campaign,
        id=ids.campaign_id(RUN, campaign.name),
        task_queue=ids.WORKFLOW_QUEUE,
        execution_timeout=CAMPAIGN_TIMEOUT,
    )
    for key in ("after", "greedy_after"):
        if key in evaluations:
            name, temperature = evaluations[key]
            watch.stage = f"evaluating after ({'greedy' if temperature == 0 else 'sampled'})"
            await _run_burst(client, plan.evaluation(name, temperature=temperature))
    return {key: name for key, (name, _) in evaluations.items()}


async def _run_burst(client: Client, spec: BurstSpec) -> None:
    await client.execute_workflow(
        "Burst",
        spec,
        id=ids.burst_id(RUN, spec.name),
        task_queue=ids.WORKFLOW_QUEUE,
        execution_timeout=EVALUATION_TIMEOUT,
    )

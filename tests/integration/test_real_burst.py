"""A short burst on nothing but real parts: Temporal, SGLang, Megatron-core, Mooncake, mini-swe-agent; then audited."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import func, select

from infra.audit import audit_run
from infra.demo.tasks import write_task_set
from infra.records.schema import batches, executions, segments, transitions, updates
from infra.settings.fleet import Fleet
from tests.integration.conftest import Run
from workers.demo.summary import logprob_gap
from workers.supervisor import LocalStack
from workflows.messages.burst import BurstSpec, Limits, PolicySettings, Purpose, Sampling, Training
from workflows.messages.fleet import CellSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Run]:
    folder = tmp_path_factory.mktemp("real")
    write_task_set(folder / "tasks", train=12, heldout=6, seed=5)
    fleet = Fleet(
        run="real",
        cells=tuple(CellSpec(index=index, slots=8, kv_tokens=16384) for index in range(2)),
        task_sets={"repairs": str(folder / "tasks")},
    )
    async with LocalStack(fleet, folder / "run") as stack:
        await stack.ready(timeout_seconds=600)
        yield Run(stack)


def _burst(name: str, **changes: object) -> BurstSpec:
    spec = BurstSpec(
        run="real",
        name=name,
        tasks="repairs",
        seed=3,
        groups_per_step=3,
        executions_per_group=6,
        steps=1,
        sampling=Sampling(max_call_tokens=96),
        limits=Limits(wall_seconds=400),
        policy=PolicySettings(hold_seconds=0.5),
        training=Training(token_budget=512),
    )
    return spec.model_copy(update=changes)


async def test_training_burst_is_clean_under_audit(run: Run) -> None:
    handle = await run.start(_burst("first"))
    report = await handle.result()
    assert report["executions"] == 18
    with run.stack.records.connect() as connection:
        assert (
            connection.scalar(select(func.count()).select_from(executions).where(executions.c.outcome == "scored")) > 0
        )
        moved = connection.execute(select(transitions).where(transitions.c.direction == "to_training")).all()
        assert moved, "no cell ever went into training"
        assert all(row.result == "done" for row in moved)
        published = connection.scalar(select(func.max(updates.c.version)))
        committed = connection.execute(select(batches).where(batches.c.committed_at.is_not(None))).all()
    assert len(committed) == 1
    assert report["version"] == published == committed[0].version_after
    audit = audit_run(Path(run.stack.run_dir), at_rest=True)
    assert not audit.findings, audit.findings
    assert audit.figures["max_w_minus_capacity"] <= 0
    assert audit.figures["targets_trained_twice"] == 0


async def test_behaviour_logprobs_are_the_trainers(run: Run) -> None:
    """What SGLang said it sampled with is what Megatron computes for the same version."""
    gap = logprob_gap(run.stack.records)
    assert gap["target_tokens"] > 0
    assert gap["mean"] < 1e-3
    assert gap["p999"] < 1e-2


async def test_evaluation_runs_held_out_tasks_without_training(run: Run) -> None:
    await run.rested()
    before = (await run.scheduler())["weights"]
    handle = await run.start(
        _burst("held-out", purpose=Purpose.EVALUATE, split="heldout", groups_per_step=6, executions_per_group=1)
    )
    report = await handle.result()
    assert report["executions"] == 6
    assert (await run.scheduler())["weights"] == before
    with run.stack.records.connect() as connection:
        versions = connection.scalars(
            select(segments.c.version)
            .where(segments.c.call.is_not(None))
            .order_by(segments.c.started_at.desc())
            .limit(5)
        ).all()
    assert set(versions) == {before["version"]}, "the evaluation was not served by the published version"
    assert audit_run(Path(run.stack.run_dir), at_rest=True).ok

"""Case 35 (single paths): the same targets and weights however a group is cut."""

from collections import defaultdict
from typing import Literal

import numpy as np
import pytest
from sqlalchemy import Engine, select

from activities.trajectories.admission import AdmissionActivities
from activities.trajectories.packing import PackingActivities
from activities.trajectories.processing import ProcessingActivities
from infra.micro_steps import decode
from infra.records.executions import execution_of
from infra.records.schema import executions, micro_steps
from workflows.messages.burst import Training
from workflows.messages.errors import Fenced
from workflows.messages.group import AdmitGroup, PackGroup

Layout = Literal["flat", "tree"]
LENGTHS = [1, 3, 10, 40, 75, 200, 330, 1000]


@pytest.fixture
async def admitted(engine: Engine, objects, host, environment, record_call, close, make_spec, make_task):
    """A group of executions with one path each of the given lengths, and rewards 0 and 1 in turn."""
    processing, task = ProcessingActivities(engine, objects, host.proxy), make_task("true")
    names = []
    for member, length in enumerate(LENGTHS):
        spec = make_spec(task, member=member)
        host.records.open(spec, token_sha256="x", workspace="")
        record_call(spec, 0, [5, 6], [100 + place for place in range(length)])
        await environment().run(processing.process_execution, spec)
        close(spec, float(member % 2))
        names.append(execution_of(spec))
    request = AdmitGroup(run="test", burst="first", group=7, executions=tuple(names), training=Training(), version=3)
    return await environment().run(AdmissionActivities(engine).admit_group, request)


def asked(
    budget: int, *, first: int = 0, batch: str = "test/batch/first/0", group: int = 7, layout: Layout = "flat"
) -> PackGroup:
    return PackGroup(
        run="test",
        batch=batch,
        burst="first",
        group=group,
        first_index=first,
        token_budget=budget,
        temperature=0.7,
        layout=layout,
    )


def weights_by_target(objects, packed) -> dict[tuple[str, int], float]:
    """(call, offset) -> weight; raises if a target is there twice."""
    found: dict[tuple[str, int], float] = {}
    for one in packed.micro_steps:
        step = decode(objects.get(one.payload))
        for path in step.header.paths:
            for span in path.spans:
                for place in range(span.start, span.end):
                    key = (f"{path.execution}:{span.call}", span.offset + place - span.start)
                    assert key not in found
                    found[key] = float(step.weights[place])
    return found


@pytest.mark.parametrize("layout", ["flat", "tree"])
@pytest.mark.parametrize("budget", [1, 64, 400, 2048, 1 << 20])
async def test_case_35_targets_and_weights_do_not_depend_on_the_cut(
    admitted, engine, objects, environment, budget, layout
):
    packing = PackingActivities(engine, objects)
    packed = await environment().run(packing.pack_group, asked(budget, layout=layout))
    found = weights_by_target(objects, packed)
    assert len(found) == sum(LENGTHS) == admitted.target_tokens
    per_execution: dict[str, float] = defaultdict(float)
    for (source, _), weight in found.items():
        per_execution[source] += weight
    sums = np.array([per_execution[name] for name in sorted(per_execution)])
    expected = np.where(np.arange(len(LENGTHS)) % 2 == 0, -0.5, 0.5) / (np.sqrt(8 * 0.25 / 7) + 1e-6)
    assert sums == pytest.approx(expected, rel=1e-4)
    for one in packed.micro_steps:
        step = decode(objects.get(one.payload))
        assert (step.header.temperature, step.header.layout) == (0.7, layout)
        assert (one.tokens, one.target_tokens) == (step.tokens, step.target_tokens)
        assert one.tokens <= budget or len(step.header.paths) == 1


async def test_paths_fill_the_budget(admitted, engine, objects, environment):
    packed = await environment().run(PackingActivities(engine, objects).pack_group, asked(1002))
    assert [one.tokens for one in packed.micro_steps] == [1002, 673]


async def test_a_retry_writes_the_same_bytes_and_rows(admitted, engine, objects, environment):
    packing = PackingActivities(engine, objects)
    first = await environment().run(packing.pack_group, asked(100, first=4))
    assert await environment().run(packing.pack_group, asked(100, first=4)) == first
    assert [one.index for one in first.micro_steps] == list(range(4, 4 + len(first.micro_steps)))
    with engine.connect() as connection:
        rows = connection.execute(select(micro_steps).order_by(micro_steps.c.micro_step)).all()
    assert [(row.micro_step, row.sha256, row.group_id) for row in rows] == [
        (one.index, one.payload.sha256, "first/0007") for one in first.micro_steps
    ]


async def test_where_targets_come_from_is_in_the_micro_step(admitted, engine, objects, environment):
    packed = await environment().run(PackingActivities(engine, objects).pack_group, asked(1 << 20))
    step = decode(objects.get(packed.micro_steps[0].payload))
    assert len(step.header.executions) == len(LENGTHS)
    with engine.connect() as connection:
        rows = {row.execution: row for row in connection.execute(select(executions))}
    for one in step.header.executions:
        row = rows[one.execution]
        assert (one.task, one.harness, one.reward) == (row.task.rsplit("/", 1)[-1], row.harness, row.reward)
        assert one.trajectory_sha256 == row.trajectory["payload"]["sha256"]
        assert (one.outcome, one.oldest_version, one.newest_version) == ("scored", 3, 3)
        assert one.evaluator == row.evaluator == "e" * 64
    assert {(path.role, path.branch) for path in step.header.paths} == {("main", "start")}


async def test_what_paths_share_is_there_once_in_a_tree(
    engine, objects, host, environment, record_call, close, make_spec, make_task
):
    processing, task, names = ProcessingActivities(engine, objects, host.proxy), make_task("true"), []
    for member in range(2):
        spec = make_spec(task, member=member)
        host.records.open(spec, token_sha256="x", workspace="")
        trunk = list(range(50))
        for sequence in range(3):
            record_call(spec, sequence, [*trunk, 60 + sequence], [70, 71])
        await environment().run(processing.process_execution, spec)
        close(spec, float(member))
        names.append(execution_of(spec))
    request = AdmitGroup(run="test", burst="first", group=7, executions=tuple(names), training=Training(), version=3)
    await environment().run(AdmissionActivities(engine).admit_group, request)
    packing = PackingActivities(engine, objects)
    tokens = {}
    for layout, batch in (("flat", "test/batch/first/0"), ("tree", "test/batch/first/1")):
        packed = await environment().run(packing.pack_group, asked(1000, layout=layout, batch=batch))
        tokens[layout] = sum(one.tokens for one in packed.micro_steps)
        assert sum(one.target_tokens for one in packed.micro_steps) == 12
    assert tokens == {"flat": 2 * 3 * 53, "tree": 2 * (50 + 3 * 3)}


async def test_a_group_without_signal_has_no_micro_step(engine, objects, environment):
    request = AdmitGroup(run="test", burst="first", group=1, executions=("nobody",), training=Training(), version=3)
    await environment().run(AdmissionActivities(engine).admit_group, request)
    packed = await environment().run(PackingActivities(engine, objects).pack_group, asked(100, group=1))
    assert packed.micro_steps == ()


async def test_a_group_that_was_never_admitted_is_refused(engine, objects, environment):
    with pytest.raises(Fenced, match="never admitted"):
        await environment().run(PackingActivities(engine, objects).pack_group, asked(100, group=99))

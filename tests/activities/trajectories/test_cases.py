"""Field cases of trajectories and groups that need records, admission and packing together."""

import logging
from collections import defaultdict

import pytest
from sqlalchemy import Engine, select

from activities.trajectories.admission import AdmissionActivities
from activities.trajectories.artifact import decode_trajectory
from activities.trajectories.packing import PackingActivities
from activities.trajectories.processing import ProcessingActivities
from infra.micro_steps import decode
from infra.records.executions import execution_of
from infra.records.groups import GroupMember
from infra.records.schema import groups
from tests.activities.trajectories.shapes import targets_of
from workflows.messages.burst import Training
from workflows.messages.execution import EndReason, Evaluation, HarnessRun, Outcome
from workflows.messages.group import AdmitGroup, NoSignal, PackGroup


@pytest.fixture
def processing(engine: Engine, objects, host) -> ProcessingActivities:
    return ProcessingActivities(engine, objects, host.proxy)


@pytest.fixture
def member_of(host, make_spec, make_task):
    """The spec of one member of group 7, its row open."""
    task = make_task("true")

    def make(member: int):
        spec = make_spec(task, member=member)
        host.records.open(spec, token_sha256="x", workspace="")
        return spec

    return make


@pytest.fixture
def admit_and_pack(engine: Engine, objects, environment):
    """Admits group 7 with these members and packs it; the group's members and the micro-steps."""

    async def run(names, *, layout="flat", budget=100):
        request = AdmitGroup(
            run="test", burst="first", group=7, executions=tuple(names), training=Training(), version=3
        )
        admitted = await environment().run(AdmissionActivities(engine).admit_group, request)
        asked = PackGroup(
            run="test",
            batch="test/batch/first/0",
            burst="first",
            group=7,
            first_index=0,
            token_budget=budget,
            temperature=1.0,
            layout=layout,
        )
        packed = await environment().run(PackingActivities(engine, objects).pack_group, asked)
        with engine.connect() as connection:
            found = connection.execute(select(groups.c.members)).scalar_one()
        members = [GroupMember.model_validate(member) for member in found]
        return admitted, members, [decode(objects.get(one.payload)) for one in packed.micro_steps]

    return run


def summed_weights(steps) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for step in steps:
        for path in step.header.paths:
            for span in path.spans:
                found[path.execution] += float(step.weights[span.start : span.end].sum())
    return dict(found)


async def test_case_26_a_prompt_that_never_merges_is_reported(
    processing, member_of, record_call, environment, objects, host, caplog
):
    """Ten turns whose first line holds something new each time: ten paths, five of them drawn, said loudly."""
    spec, history = member_of(0), []
    for turn in range(10):
        output = [200 + turn, 300 + turn]
        record_call(spec, turn, [1, 2, 100 + turn, 3, *history], output)
        history += [*output, 4]
    with caplog.at_level(logging.WARNING):
        processed = await environment().run(processing.process_execution, spec)
    assert "9 of 10 calls neither begin nor go on with a recorded history" in caplog.text
    assert (processed.candidates, processed.paths, processed.unmerged_calls) == (10, 5, 9)
    assert processed.expanded_tokens - processed.unique_tokens == 9 * 2  # they share no more than two tokens
    row = host.records.get(execution_of(spec))
    stored = decode_trajectory(objects.get(row.processed.payload))
    found = [prefix for prefix, *_ in targets_of(stored)]
    assert len(found) == len(set(found)) == processed.target_tokens == 10


async def test_case_26_turns_that_merge_are_not_reported(processing, member_of, record_call, environment, caplog):
    spec, history = member_of(0), [1, 2, 3]
    for turn in range(10):
        record_call(spec, turn, list(history), [200 + turn])
        history += [200 + turn, 4]
    with caplog.at_level(logging.WARNING):
        processed = await environment().run(processing.process_execution, spec)
    assert (processed.candidates, processed.unmerged_calls, caplog.text) == (1, 0, "")


@pytest.mark.parametrize("layout", ["flat", "tree"])
@pytest.mark.parametrize("twice", [False, True])
async def test_case_32_paths_do_not_pull_the_baseline(
    processing, member_of, record_call, environment, close, admit_and_pack, layout, twice
):
    """Rewards 1, 0, 0, 0 with 1, 1, 1 and 5 paths: baseline 0.25, and every execution weighs its advantage."""
    names = []
    for member, paths in enumerate([1, 1, 1, 5]):
        spec = member_of(member)
        for path in range(paths):
            record_call(spec, path, [1, 2, 3], [10 + path, 20, 30])
        if twice:
            record_call(spec, paths, [1, 2, 3], [10, 20, 30])
        await environment().run(processing.process_execution, spec)
        close(spec, 1.0 if member == 0 else 0.0)
        names.append(execution_of(spec))
    admitted, members, steps = await admit_and_pack(names, layout=layout)
    assert admitted.mean_reward == 0.25
    expected = [1.5, -0.5, -0.5, -0.5]  # (r - 0.25) / 0.5
    assert [member.advantage for member in members] == pytest.approx(expected, rel=1e-4)
    assert [member.target_tokens for member in members] == [3, 3, 3, 15]
    summed = summed_weights(steps)
    assert [summed[name] for name in names] == pytest.approx(expected, rel=1e-4)


async def test_case_34_a_group_without_any_target_has_no_micro_step(
    processing, member_of, record_call, environment, close, admit_and_pack
):
    names = []
    for member in range(2):
        spec = member_of(member)
        record_call(spec, 0, [1, 2], [], spans=[])
        await environment().run(processing.process_execution, spec)
        close(spec, float(member))
        names.append(execution_of(spec))
    admitted, _, steps = await admit_and_pack(names)
    assert (admitted.no_signal, admitted.valid, steps) == (NoSignal.NO_TARGETS, 2, [])


async def test_case_34_a_single_target_token(processing, member_of, record_call, environment, close, admit_and_pack):
    names = []
    for member in range(2):
        spec = member_of(member)
        record_call(spec, 0, [1, 2], [3] if member else [], spans=[[3, 1]] if member else [])
        await environment().run(processing.process_execution, spec)
        close(spec, float(member))
        names.append(execution_of(spec))
    admitted, _, steps = await admit_and_pack(names)
    assert (admitted.valid, admitted.target_tokens) == (2, 1)
    assert summed_weights(steps) == {names[1]: pytest.approx(0.5**0.5, rel=1e-4)}


async def test_cases_36_45_47_51_what_is_left_is_scored_and_only_failures_are_left_out(
    processing, member_of, record_call, environment, engine, host, admit_and_pack
):
    """A run cut by its limit, a crash and a call limit keep their scores; a slow grader and a lost run are left out."""
    ends = [
        (EndReason.WALL_LIMIT, Evaluation(outcome=Outcome.SCORED, reward=1.0, detail="")),
        (EndReason.CRASHED, Evaluation(outcome=Outcome.SCORED, reward=0.25, detail="")),
        (EndReason.CALL_LIMIT, Evaluation(outcome=Outcome.SCORED, reward=0.0, detail="")),
        (EndReason.SUBMITTED, Evaluation(outcome=Outcome.EVALUATOR_FAILED, detail="no result within 60 s")),
        (EndReason.NEVER_RAN, Evaluation(outcome=Outcome.NO_ARTIFACT, detail="no image")),
    ]
    names = []
    for member, (end, evaluation) in enumerate(ends):
        spec = member_of(member)
        record_call(spec, 0, [1, 2], [3, 4])
        await environment().run(processing.process_execution, spec)
        host.records.close(spec, HarnessRun(end=end), evaluation)
        names.append(execution_of(spec))
    stuck = member_of(5)  # its worker was killed: nobody ever closed it
    names.append(execution_of(stuck))
    admitted, members, steps = await admit_and_pack(names)
    assert [member.left_out for member in members] == [
        None,
        None,
        None,
        "evaluator_failed",
        "no_artifact",
        "no_artifact",
    ]
    assert [member.reward for member in members] == [1.0, 0.25, 0.0, None, None, None]
    assert (admitted.valid, admitted.no_signal) == (3, None)
    assert admitted.mean_reward == pytest.approx(1.25 / 3)
    assert set(summed_weights(steps)) == set(names[:3])
    row = host.records.get(execution_of(stuck))
    assert (row.end_reason, row.outcome) == ("terminated", "no_artifact")

"""Cases 32, 33, 34, 38 and 52 (admission): statistics over executions, frozen once, in one durable order."""

import asyncio
from statistics import mean, stdev

import pytest
from sqlalchemy import Engine, select

from activities.trajectories.admission import AdmissionActivities
from activities.trajectories.processing import ProcessingActivities
from infra.records.executions import execution_of
from infra.records.groups import GroupMember
from infra.records.schema import executions, groups
from workflows.messages.burst import Training
from workflows.messages.errors import VersionMismatch
from workflows.messages.group import AdmitGroup, NoSignal


@pytest.fixture
def make_group(engine: Engine, objects, host, environment, record_call, close, make_spec, make_task):
    """Closed and processed executions with these rewards (None: grader failed); returns their ids."""
    processing = ProcessingActivities(engine, objects, host.proxy)
    task = make_task("true")

    async def make(rewards, *, group: int = 0, tokens=None, version: int = 3, spans=None) -> tuple[str, ...]:
        names = []
        for member, reward in enumerate(rewards):
            spec = make_spec(task, member=member).model_copy(update={"group": group})
            host.records.open(spec, token_sha256="x", workspace="")
            count = (tokens or [member + 1] * (member + 1))[member]
            if count:
                versions = spans[member] if spans else [[version, count]]
                record_call(spec, group, [7, 8], list(range(10, 10 + count)), spans=versions)
            await environment().run(processing.process_execution, spec)
            close(spec, reward)
            names.append(execution_of(spec))
        return tuple(names)

    return make


def request(names, *, group: int = 0, version: int = 5, **training) -> AdmitGroup:
    return AdmitGroup(
        run="test", burst="first", group=group, executions=names, training=Training(**training), version=version
    )


@pytest.fixture
def admit(engine: Engine, environment):
    activities = AdmissionActivities(engine)
    return lambda asked: environment().run(activities.admit_group, asked)


def members(engine: Engine, group: int = 0) -> list[GroupMember]:
    with engine.connect() as connection:
        found = connection.execute(select(groups.c.members).where(groups.c.group_index == group)).scalar_one()
    return [GroupMember.model_validate(member) for member in found]


async def test_statistics_are_over_valid_executions(make_group, admit, engine):
    names = await make_group([1.0, 0.0, None, 0.25], tokens=[2, 3, 4, 5])
    admitted = await admit(request(names))
    rewards = [1.0, 0.0, 0.25]
    assert (admitted.valid, admitted.no_signal, admitted.target_tokens) == (3, None, 10)
    assert admitted.mean_reward == pytest.approx(mean(rewards))
    assert admitted.staleness == 2.0
    found = members(engine)
    expected = [(reward - mean(rewards)) / (stdev(rewards) + 1e-6) for reward in rewards]
    assert [found[index].advantage for index in (0, 1, 3)] == pytest.approx(expected)
    assert (found[2].advantage, found[2].left_out, found[2].reward) == (None, "evaluator_failed", None)
    assert [member.target_tokens for member in found] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("rewards", "tokens", "reason"),
    [
        ([0.1, 0.1, 0.1], None, NoSignal.EQUAL_REWARDS),
        ([1.0, None, None], None, NoSignal.TOO_FEW_VALID),
        ([None, None], None, NoSignal.TOO_FEW_VALID),
        ([1.0], None, NoSignal.TOO_FEW_VALID),
        ([1.0, 0.0], [0, 0], NoSignal.NO_TARGETS),
    ],
)
async def test_no_signal_is_admitted_with_its_reason(make_group, admit, engine, rewards, tokens, reason):
    admitted = await admit(request(await make_group(rewards, tokens=tokens)))
    assert (admitted.no_signal, admitted.target_tokens) == (reason, 0)
    assert all(member.advantage is None for member in members(engine))
    assert admitted.valid == sum(reward is not None for reward in rewards)


async def test_an_empty_member_counts_among_the_valid(make_group, admit):
    admitted = await admit(request(await make_group([1.0, 0.0], tokens=[0, 3])))
    assert (admitted.valid, admitted.no_signal, admitted.target_tokens) == (2, None, 3)


async def test_admission_is_frozen(make_group, admit, engine, set_reward):
    names = await make_group([1.0, 0.0])
    first = await admit(request(names))
    set_reward(names[0], 0.0)
    assert await admit(request(names, version=9)) == first


async def test_sequence_is_one_order_whatever_arrives_at_once(make_group, admit):
    names = [await make_group([1.0, 0.0], group=group) for group in range(6)]
    admitted = await asyncio.gather(*(admit(request(names[group], group=group)) for group in range(6)))
    assert sorted(one.sequence for one in admitted) == list(range(6))
    again = await asyncio.gather(*(admit(request(names[group], group=group)) for group in range(6)))
    assert again == admitted


async def test_stale_executions_are_left_out_with_the_reason(make_group, admit, engine):
    names = await make_group([1.0, 0.0, 1.0])
    assert (await admit(request(names, max_staleness=2))).valid == 3
    names = await make_group([1.0, 0.0, 1.0], group=1)
    admitted = await admit(request(names, group=1, max_staleness=1))
    assert (admitted.valid, admitted.no_signal) == (0, NoSignal.TOO_FEW_VALID)
    assert [member.left_out for member in members(engine, 1)] == ["stale: 2 versions old"] * 3
    assert [member.reward for member in members(engine, 1)] == [1.0, 0.0, 1.0]


async def test_case_24_one_old_token_makes_an_execution_old(make_group, admit, engine):
    """Spans of versions 3, 4, 3: its age is that of the oldest, whatever was sampled last."""
    names = await make_group([1.0, 0.0, 1.0], spans=[[[5, 1]], [[3, 1], [4, 1]], [[5, 1], [4, 2]]])
    admitted = await admit(request(names, max_staleness=1))
    found = members(engine)
    assert [member.left_out for member in found] == [None, "stale: 2 versions old", None]
    assert [(one.oldest_version, one.newest_version, one.age) for one in found] == [(5, 5, 0), (3, 4, 2), (4, 5, 1)]
    assert (admitted.valid, admitted.no_signal) == (2, NoSignal.EQUAL_REWARDS)


async def test_negative_staleness_is_an_error(make_group, admit, engine):
    names = await make_group([1.0, 0.0], version=6)
    with pytest.raises(VersionMismatch, match="newer than 5"):
        await admit(request(names))
    with engine.connect() as connection:
        assert connection.execute(select(groups)).all() == []


async def test_unclosed_and_unknown_members_are_closed_and_left_out(make_group, admit, engine, host, make_spec):
    names = await make_group([1.0, 0.0])
    open_one = make_spec(host.workspaces, member=2).model_copy(update={"group": 0})
    host.records.open(open_one, token_sha256="x", workspace="")
    names = (*names, execution_of(open_one), "test/execution/first/0000/03")
    admitted = await admit(request(names))
    assert admitted.valid == 2
    assert [member.left_out for member in members(engine)] == [None, None, "no_artifact", "never prepared"]
    with engine.connect() as connection:
        row = connection.execute(select(executions).where(executions.c.execution == execution_of(open_one))).one()
    assert (row.state, row.end_reason, row.outcome) == ("closed", "terminated", "no_artifact")
    assert row.closed_at is not None

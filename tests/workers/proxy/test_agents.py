"""Summaries of a harness that does not say whose they are."""

import dataclasses

import pytest

from harness_adapters.protocol import CallRole
from tests.workers.proxy.conftest import said, user
from workers.proxy.agents import Agents
from workers.proxy.dialect import DIALECTS

MACHINE = [user("This is the machine."), said("I see.")]
MAIN = [*MACHINE, user("Repair it."), said("I look.")]
HELPER = [*MACHINE, user("Find the fault."), said("I search.")]


def request(role, *messages, system="You are an agent."):
    parsed = DIALECTS["chat"].parse({"messages": [{"role": "system", "content": system}, *messages]}, {})
    return dataclasses.replace(parsed, role=role)


def summary(*history):
    return request(CallRole.MAIN_SUMMARY, *history, user("Summarise."), system="You summarise.")


@pytest.fixture
def agents():
    agents = Agents()
    for role, talk in ((CallRole.MAIN, MAIN), (CallRole.SUB_AGENT, HELPER)):
        agents.settled(request(role, *talk[:3]))
        agents.settled(request(role, *talk, user("More.")))
    return agents


@pytest.mark.parametrize(
    ("history", "role"),
    [
        (MAIN, CallRole.MAIN_SUMMARY),
        (HELPER, CallRole.SUB_AGENT_SUMMARY),
        ([*HELPER, user("a"), said("b")] * 3, CallRole.SUB_AGENT_SUMMARY),
        (MACHINE, CallRole.MAIN_SUMMARY),
        ([user("Nobody began like that.")], CallRole.MAIN_SUMMARY),
        ([*HELPER[:3], said("Somebody edited this.")], CallRole.SUB_AGENT_SUMMARY),
        ([], CallRole.MAIN_SUMMARY),
    ],
)
def test_a_summary_is_of_the_agent_whose_beginning_it_repeats(agents, history, role):
    assert agents.settled(summary(*history)).role is role


def test_agents_that_began_alike_are_not_told_apart(agents):
    agents.settled(request(CallRole.MAIN, *HELPER))
    assert agents.settled(summary(*HELPER)).role is CallRole.MAIN_SUMMARY


def test_what_a_harness_says_itself_stays(agents):
    asked = dataclasses.replace(summary(*MAIN), role=CallRole.SUB_AGENT_SUMMARY)
    assert agents.settled(asked) is asked
    assert agents.settled(request(CallRole.SIDE, *HELPER)).role is CallRole.SIDE


def test_messages_that_are_none_are_refused_later_and_by_name():
    for content in (3, [3], {"a": 1}, "\ud800"):
        Agents().settled(dataclasses.replace(summary(), messages=[{"role": "user", "content": content}, 3, "x"]))


async def test_the_role_is_on_record(stage, script):
    await stage.engine(script=script(default="ok"))
    await stage.register(harness="qwen-code")
    tools = {name: [{"type": "function", "function": {"name": name}}] for name in ("get_goal", "grep")}
    await stage.ask(*MACHINE, user("Repair it."), tools=tools["get_goal"])
    await stage.ask(*MACHINE, user("Find the fault."), tools=tools["grep"])
    for history in (MAIN, HELPER):
        await stage.ask(*history, user("Give me a <state_snapshot>."))
    roles = [call.role for call in await stage.calls()]
    assert roles == ["main", "sub-agent", "main-summary", "sub-agent-summary"]

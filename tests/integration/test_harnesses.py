"""Every harness, for real, through the real proxy: drained in mid-answer, it ends as if nothing had happened.

What the policy says is scripted (paced engines), everything else is what a user would run: the installed harness in its
sandbox, the proxy, its records. Expected trees are written down here and not taken from the parts.
"""

from pathlib import Path
from typing import Literal

import pytest

from harness_adapters.registry import adapter_named
from infra.processes.isolation import isolation_here
from infra.tokenizer import ChatTokenizer
from workers.rehearsal import Rehearsal, Stage, Try, parts_of
from workers.rehearsal.model import write_model
from workflows.messages.burst import HarnessChoice
from workflows.messages.execution import EndReason

CHECKOUT = Path(__file__).parents[2]
HARNESS_ROOT = CHECKOUT / "var" / "harness"
WALL_SECONDS = 600

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("rehearsal") / "model", CHECKOUT / "docs")


async def rehearse(folder, model, harness, part, client: Literal["thin", "stock"] = "thin") -> Try:
    adapter_named(harness).install(HARNESS_ROOT)
    chosen = parts_of(harness)[part]
    context = chosen.context_tokens
    async with Stage(folder / "stage", model, chosen.script, engines=2, context_tokens=context) as stage:
        rehearsal = Rehearsal(stage, HARNESS_ROOT, CHECKOUT, isolation_here())
        choice = HarnessChoice(name=harness, client=client)
        outcome = await rehearsal.run(choice, chosen, drains=1, wall_seconds=WALL_SECONDS, told=print)
        assert stage.proxy.executions.in_flight() == {}
        assert [engine.running for engine in stage.engines] == [[], []]
        return outcome


def tree(outcome):
    """(role, which earlier call it continues, whether all of that one's ids were used again) of every call."""
    order = {call.call: call.sequence for call in outcome.calls}
    lengths = {call.call: call.prompt_tokens + len(call.output_array) for call in outcome.calls}
    return [
        (call.role, None if whole is False else order[call.parent_call])
        for call in outcome.calls
        for whole in [call.parent_call is not None and call.shared_tokens >= lengths[call.parent_call]]
    ]


def assert_as_if_nothing_had_happened(outcome, model):
    assert outcome.run.end is EndReason.SUBMITTED, outcome.run
    assert outcome.written == "hello\n"
    assert outcome.moved == 1
    assert {(call.state, call.finish) for call in outcome.calls} == {("finished", "stop")}
    assert outcome.run.model_calls == len(outcome.calls)
    chat = ChatTokenizer(model)
    for call in outcome.calls:
        # What was said is the script to the last character, also where the engine changed in the middle of it.
        said = chat.decode(call.output_ids)
        replies = [
            reply
            for part in parts_of(outcome.spec.harness.name).values()
            for rule in part.rules
            for reply in rule["replies"]
        ]
        assert any(said == reply or "{{agent}}" in reply for reply in replies), said
        assert len(call.output_logprobs) == len(call.output_ids)


MAIN = [("main", None), ("main", 0), ("main", 1)]


@pytest.mark.parametrize("harness", ["mini-swe-agent", "pi", "codex", "claude-code", "qwen-code"])
async def test_a_harness_whose_engine_leaves_in_mid_answer(tmp_path, model, harness):
    outcome = await rehearse(tmp_path, model, harness, "repair")
    assert_as_if_nothing_had_happened(outcome, model)
    assert tree(outcome) == MAIN
    # What the last command printed has reached the policy: a harness may lose the output of one that ends at once.
    *_, looked, done = outcome.calls
    seen = ChatTokenizer(model).decode(done.prompt_ids[looked.prompt_tokens + len(looked.output_ids) :])
    assert "hello" in seen, seen


async def test_mini_swe_agent_with_its_own_client(tmp_path, model):
    outcome = await rehearse(tmp_path, model, "mini-swe-agent", "repair", "stock")
    assert_as_if_nothing_had_happened(outcome, model)
    assert tree(outcome) == MAIN


async def test_claude_code_with_a_sub_agent(tmp_path, model):
    outcome = await rehearse(tmp_path, model, "claude-code", "errand")
    assert_as_if_nothing_had_happened(outcome, model)
    assert tree(outcome) == [("main", None), ("sub-agent", None), ("sub-agent", 1), ("main", 0)]


async def test_codex_with_a_sub_agent_that_it_waits_for(tmp_path, model):
    outcome = await rehearse(tmp_path, model, "codex", "errand")
    assert_as_if_nothing_had_happened(outcome, model)
    by_role = {role: [call.sequence for call in outcome.calls if call.role == role] for role in ("main", "sub-agent")}
    assert {role: len(calls) for role, calls in by_role.items()} == {"main": 3, "sub-agent": 2}
    # Both work at the same time, so only the order within each is fixed: each is one unbroken path.
    found = dict(enumerate(tree(outcome)))
    for role, calls in by_role.items():
        assert [found[number] for number in calls] == [(role, None), *((role, before) for before in calls[:-1])]


@pytest.mark.parametrize(
    ("harness", "before"),
    [("claude-code", ["main", "main"]), ("codex", ["main"]), ("qwen-code", ["main"])],
    ids=["claude-code", "codex", "qwen-code"],
)
async def test_a_conversation_that_outgrows_its_context_is_summarised(tmp_path, model, harness, before):
    """Case 12 too: qwen-code does not know how small the context is until a call is refused in its dialect's words."""
    outcome = await rehearse(tmp_path, model, harness, "compact")
    assert_as_if_nothing_had_happened(outcome, model)
    assert [call.role for call in outcome.calls] == [*before, "main-summary", "main"]
    # The history starts anew from the summary: the last call continues no earlier one to its end.
    assert tree(outcome)[-1] == ("main", None)

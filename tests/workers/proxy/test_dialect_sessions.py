"""A session of three turns over a real kind of template, in every dialect: what was sampled is never encoded again."""

from itertools import pairwise

import pytest

from tests.infra.tokenizer.families import write_family
from tests.workers.proxy.conftest import Stage, user
from tests.workers.proxy.spoken import DIALECTS, ask, results, turn

# Spelled as no JSON library would spell it, so that only re-used ids can give it back.
LOOK = '<tool_call>\n{"name": "bash", "arguments": {"cmd":"ls"  ,"n": 1.50}}\n</tool_call>'
EDIT = '<tool_call>\n{"name": "bash", "arguments": {"cmd": "echo \\u00e9 > a"}}\n</tool_call>'


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return write_family(tmp_path_factory.mktemp("qwen") / "policy", "qwen")


@pytest.fixture
async def session(family, records, script):
    file = script({"replies": [f"<think>\nlook first\n</think>\n\nI look.\n{LOOK}\n{LOOK}", EDIT, "Done."]})
    async with Stage(family, records, context=4000) as stage:
        await stage.engine(script=file)
        await stage.register()
        yield stage


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_goes_on_from_exactly_what_was_sampled(session, dialect, stream):
    history, finishes = [user("go")], []
    for _ in range(3):
        told = await ask(session, dialect, *history, tools=True, stream=stream)
        finishes.append(told.finish)
        history += [*turn(dialect, told), *results(dialect, told, "a.py")]
    assert finishes == ["calls", "calls", "stop"]
    assert told.text == "Done."
    calls = await session.calls()
    assert [call.fork_reason for call in calls] == [None] * 3
    for earlier, later in pairwise(calls):
        assert later.parent_call == earlier.call
        assert later.prompt_ids[: len(earlier.all_ids)] == earlier.all_ids
    assert '"cmd":"ls"  ,"n": 1.50' in session.chat.decode(calls[2].prompt_ids)
    assert "bash" in session.chat.decode(calls[0].prompt_ids)  # the tools are part of the prompt


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_schema_cut_in_mid_answer(folder, records, dialect):
    """Field case 22: an engine's place in a grammar cannot be carried. Unheard, the answer begins again; heard, it
    ends in the dialect's error, never in a finish."""
    schema = {"type": "object"}
    asked = {
        "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
        "responses": {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}},
        "messages": {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    }[dialect]
    async with Stage(folder, records) as stage:
        for cell in range(2):
            await stage.engine(grammar_backend="xgrammar", tokens_per_second=50, mean_output_tokens=10**9)
            await stage.fault(cell, kind="abort", after_tokens=5)
        await stage.register()
        whole = await ask(stage, dialect, user("go"), budget=20, **asked)
        (call,) = await stage.calls()
        assert list(call.output_ids) == stage.undisturbed(call.prompt_ids, 20)
        assert (whole.text, whole.finish) == (stage.chat.decode(call.output_ids), "length")
        for cell in range(2):
            await stage.fault(cell, kind="abort", after_tokens=5)
        broken = await ask(stage, dialect, user("go again"), budget=20, stream=True, **asked)
        assert broken.finish is None
        assert "cannot be carried" in broken.error["message"]

"""Field cases 21 to 23 in every dialect: cut anywhere, also inside a tool call, and nobody can tell."""

import asyncio

import pytest

from tests.workers.proxy.conftest import QUICK, Stage, user
from tests.workers.proxy.spoken import DIALECTS, ask

ENDLESS = {"mean_output_tokens": 10**9}
REPLY = (
    "삼겹살 first. "
    '<tool_call>\n{"name": "bash", "arguments": {"cmd": "echo \\"a b\\" > x; cat x"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls"}}\n</tool_call>'
)
CALLS = [("bash", {"cmd": 'echo "a b" > x; cat x'}), ("bash", {"cmd": "ls"})]
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
both_ways = pytest.mark.parametrize("stream", [False, True])


@every_dialect
@both_ways
async def test_inside_a_tool_call(stage, script, dialect, stream):
    path = script(default=REPLY)
    for _ in range(2):
        await stage.engine(script=path)
    length = len(stage.engines[0].reader.remaining(stage.chat.render([user("x")]), ""))
    for member, cut in enumerate(range(1, length, 13)):
        token = await stage.register(member)
        for cell in range(2):  # wherever it goes first, and once more behind that
            await stage.fault(cell, kind="abort", after_tokens=cut)
        told = await ask(stage, dialect, user("go"), token=token, tools=True, stream=stream)
        assert (told.status, told.text.strip(), told.inputs, told.finish) == (200, "삼겹살 first.", CALLS, "calls")
        assert len(set(told.ids)) == 2
        (call,) = await stage.calls(member)
        assert len(call.output_ids) == length
        assert len(stage.segments(call)) in (2, 3)
        if told.usage is not None:
            assert told.usage[1] == length


@every_dialect
async def test_what_cannot_be_carried_ends_in_an_error_of_the_dialect(stage, dialect):
    """Field case 22: a beginning that was heard, then an error; never a finish."""
    await stage.engine(**ENDLESS)
    await stage.engine(tokens_per_second=20, **ENDLESS)
    await stage.register(presence_penalty=0.5)
    asking = asyncio.create_task(ask(stage, dialect, user("go"), budget=400, stream=True))
    await stage.speaking(1, 6)
    await stage.reroute(1)
    await stage.cancel(1)
    told = await asking
    assert told.finish is None
    assert "cannot be carried" in told.error["message"]
    (call,) = await stage.calls()
    whole = stage.chat.decode(stage.undisturbed(call.prompt_ids, 400))
    assert told.text
    assert whole.startswith(told.text)
    assert call.state == "failed"


@every_dialect
@both_ways
async def test_no_engine_is_503_with_retry_after(folder, records, dialect, stream):
    """Never 429: one harness gives up on the first."""
    async with Stage(folder, records, settings=QUICK.model_copy(update={"hold_seconds": 0.1})) as stage:
        await stage.engine(**ENDLESS)
        await stage.register()
        await stage.fault(0, kind="refuse", status=429, retry_after="30", times=9)
        told = await ask(stage, dialect, user("go"), budget=5, stream=stream)
        assert (told.status, told.headers["retry-after"]) == (503, "5")
        assert told.error["message"]

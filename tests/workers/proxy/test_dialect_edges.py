"""Answers that are cut, calls that are none, clients that ask oddly: in every dialect, streamed and not."""

import asyncio
import json

import pytest
from tokenizers import Tokenizer

from tests.workers.proxy.conftest import QUICK, Stage, until, user
from tests.workers.proxy.spoken import DIALECTS, PATHS, ask, body_of, results, turn

ENDLESS = {"mean_output_tokens": 10**9}
CALL = '<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls -la /tmp"}}\n</tool_call>'
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
both_ways = pytest.mark.parametrize("stream", [False, True])


def sampled(stage, text):
    """How many tokens a scripted engine says `text` in."""
    return len(Tokenizer.from_file(str(stage.folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids)


async def two_engines(stage, script, said, cut):
    """Whichever gets the request drops it once it has said `cut`; the other one goes on."""
    file = script(default=said)
    for cell in range(2):
        await stage.engine(script=file)
        await stage.fault(cell, kind="abort", after_tokens=sampled(stage, cut))
    await stage.register()


@every_dialect
@both_ways
async def test_case_22_a_call_cut_inside_its_arguments_goes_on_elsewhere(stage, script, dialect, stream):
    await two_engines(stage, script, "Hi\n" + CALL, 'Hi\n<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls')
    told = await ask(stage, dialect, user("go"), tools=True, stream=stream)
    assert (told.text, told.inputs, told.finish) == ("Hi", [("bash", {"cmd": "ls -la /tmp"})], "calls")
    (call,) = await stage.calls()
    assert len(stage.segments(call)) > 1
    assert stage.chat.decode(call.output_ids) == "Hi\n" + CALL


@pytest.mark.parametrize("dialect", ["chat", "messages"])
@both_ways
async def test_case_22_a_stop_string_across_the_cut(stage, script, dialect, stream):
    await two_engines(stage, script, "Here is the plan END and more of it", "Here is the plan E")
    stop = {"stop": ["END"]} if dialect == "chat" else {"stop_sequences": ["END"]}
    told = await ask(stage, dialect, user("go"), stream=stream, **stop)
    assert (told.text, told.finish) == ("Here is the plan ", "stop" if dialect == "chat" else "stop string")
    if dialect == "messages":
        assert '"stop_sequence":"END"' in told.raw.replace('": "', '":"')


@every_dialect
@both_ways
async def test_case_7_a_character_cut_by_a_move_or_by_length(stage, script, dialect, stream):
    """Text and arguments arrive whole; what the budget cuts off is marked once, at the end."""
    said = '삼겹살 👩‍🚀\n<tool_call>\n{"name": "bash", "arguments": {"cmd": "삼겹살"}}\n</tool_call>'
    await two_engines(stage, script, said, "삼겹")
    for cell in range(2):
        await stage.fault(cell, kind="abort", after_tokens=1)  # one byte into the rest
    told = await ask(stage, dialect, user("go"), tools=True, stream=stream)
    assert (told.text, told.inputs, told.finish) == ("삼겹살 👩‍🚀", [("bash", {"cmd": "삼겹살"})], "calls")
    (call,) = await stage.calls()
    assert len(stage.segments(call)) > 2
    cut = await ask(stage, dialect, user("go on"), budget=sampled(stage, "삼겹") + 1, stream=stream)
    assert (cut.text, cut.finish) == ("삼겹\ufffd", "length")


@every_dialect
@both_ways
@pytest.mark.parametrize(
    ("said", "arguments", "finish"),
    [
        ('<tool_call>\n{"name": "bash", "arguments": {"cmd": "l', '{"cmd": "l', "length"),
        ('<tool_call>\n{"name": "bash", "arguments": {"cmd": oops}}\n</tool_call>', '{"cmd": oops}', "calls"),
    ],
)
async def test_a_call_that_is_no_json_is_told_as_it_is(stage, script, dialect, stream, said, arguments, finish):
    """Cut or malformed: never lost, never a crash, and the turn is recognised when it comes back."""
    await stage.engine(script=script({"match": "go", "replies": [said, "done"]}))
    await stage.register()
    budget = sampled(stage, said) if finish == "length" else None
    told = await ask(stage, dialect, user("go"), tools=True, stream=stream, budget=budget)
    expected = json.dumps({"raw_arguments": arguments}) if dialect == "messages" else arguments
    assert told.finish == finish
    assert [name for name, _ in told.calls] == ["bash"]
    assert told.calls[0][1].replace('":"', '": "') == expected
    more = await ask(stage, dialect, user("go"), *turn(dialect, told), *results(dialect, told, "no"), tools=True)
    assert more.status == 200
    first, second = await stage.calls()
    assert second.parent_call == first.call


@every_dialect
async def test_an_unfinished_call_before_its_name_is_text(stage, script, dialect):
    said = '<tool_call>\n{"name": "ba'
    await stage.engine(script=script(default=said))
    await stage.register()
    told = await ask(stage, dialect, user("go"), tools=True, budget=sampled(stage, said))
    assert (told.text, told.calls, told.finish) == (said, [], "length")


@every_dialect
async def test_silence_is_filled_in_the_dialects_own_way(folder, records, dialect):
    """While every engine drains: headers early, life that this dialect's clients count, and then the answer."""
    settings = QUICK.model_copy(update={"headers_seconds": 0.05, "keepalive_seconds": 0.05})
    async with Stage(folder, records, settings=settings) as stage:
        await stage.engine(open_door=False, **ENDLESS)
        await stage.register()
        asking = asyncio.create_task(ask(stage, dialect, user("go"), budget=4, stream=True))
        await asyncio.sleep(1.0)
        assert not asking.done()
        await stage.door(0, version=1)
        told = await asking
        assert (told.finish, told.error) == ("length", None)
        assert told.keep_alives >= 2


@every_dialect
@pytest.mark.parametrize(("choice", "calls"), [("none", 0), ("one", 1), ("many", 2)])
async def test_tool_choice(stage, script, dialect, choice, calls):
    await stage.engine(script=script(default=f"{CALL}\n{CALL}"))
    await stage.register()
    if dialect == "messages":
        options = {"none": {"tool_choice": {"type": "none"}}, "many": {"tool_choice": {"type": "auto"}},
                   "one": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}}[choice]  # fmt: skip
    else:
        options = {"none": {"tool_choice": "none"}, "many": {}, "one": {"parallel_tool_calls": False}}[choice]
    told = await ask(stage, dialect, user("go"), tools=True, **options)
    assert len(told.calls) == calls
    assert told.text == ("" if calls else f"{CALL}\n{CALL}")
    assert told.finish == ("calls" if calls else "stop")


@every_dialect
async def test_a_retry_hears_the_same_answer_streamed_or_not(stage, dialect):
    """Also while it is being sampled, and also in another way of delivery."""
    await stage.engine(tokens_per_second=50, **ENDLESS)
    await stage.register()
    first = asyncio.create_task(ask(stage, dialect, user("go"), budget=20, stream=True))
    await until(lambda: stage.engines[0].running)
    again = await ask(stage, dialect, user("go"), budget=20)
    assert again.text == (await first).text
    assert len(await stage.calls()) == 1


@every_dialect
async def test_two_agents_may_ask_the_same(stage, dialect):
    await stage.engine(tokens_per_second=50, **ENDLESS)
    await stage.register()
    await asyncio.gather(
        *(ask(stage, dialect, user("go"), budget=9, headers={"x-some-agent-id": name}) for name in ("one", "two"))
    )
    assert len(await stage.calls()) == 2


@every_dialect
async def test_tokens_in_every_place_a_client_may_put_them(stage, dialect):
    await stage.engine()
    await stage.register()
    body = body_of(dialect, user("a"), budget=2)
    for headers, status in (
        ({"authorization": "Bearer token-0"}, 200),
        ({"x-api-key": "token-0"}, 200),
        ({"x-api-key": "guess"}, 401),
        ({}, 401),
    ):
        response = await stage.client.post(f"/v1/{PATHS[dialect]}", json=body, headers=headers)
        assert response.status_code == status, response.text
        if status == 401:
            kind = "authentication_error" if dialect == "messages" else "invalid_request_error"
            assert response.json()["error"]["type"] == kind


@every_dialect
async def test_half_a_surrogate_pair_is_no_crash(stage, dialect):
    await stage.engine()
    await stage.register()
    body = json.dumps(body_of(dialect, user("a\ud83d"), budget=2))
    response = await stage.client.post(f"/x/token-0/v1/{PATHS[dialect]}", content=body.encode())
    assert response.status_code == 200, response.text


@every_dialect
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'"a"', b"[" * 100_000])
async def test_what_is_no_request_is_a_400_in_the_dialect(stage, dialect, raw):
    await stage.register()
    response = await stage.client.post(f"/x/token-0/v1/{PATHS[dialect]}", content=raw)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_what_is_not_served_is_a_404_in_the_dialect_without_the_secret(stage):
    for path in ("/x/token-0/v1/responses/compact", "/x/token-0/v1/messages/batches", "/other"):
        response = await stage.client.post(path, json={})
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
        assert "token-0" not in response.text
        response = await stage.client.post(path, json={}, headers={"anthropic-version": "2023-06-01"})
        assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")
    assert (await stage.client.get("/x/token-0/v1/responses")).status_code == 405

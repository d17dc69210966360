"""The paced engine answers as the real server does, and the same tokens wherever a request runs."""

import asyncio
import hashlib
import itertools
import json

import httpx2
import pytest

from tests.infra.tokenizer.conftest import write_folder
from workers.cell.rollout.paced.engine import PacedEngine
from workers.cell.rollout.paced.routes import paced_app
from workers.cell.rollout.paced.settings import PacedSettings
from workers.cell.rollout.paced.tokens import chain

FAST = {"tokens_per_second": 20000, "prefill_tokens_per_second": 1e9}
PROMPT = list(range(5, 105))


def serve(**settings):
    engine = PacedEngine(PacedSettings(**{**FAST, **settings}))
    return engine, httpx2.AsyncClient(transport=httpx2.ASGITransport(app=paced_app(engine)), base_url="http://engine")


def ask(rid, prompt=None, budget=20, **more):
    return {
        "rid": rid,
        "input_ids": prompt or PROMPT,
        "return_logprob": True,
        "sampling_params": {"max_new_tokens": budget, "ignore_eos": True},
        **more,
    }


async def generate(client, *arguments, **more):
    reply = await client.post("/generate", json=ask(*arguments, **more))
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(text):
    lines = [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"], lines[-1:] == ["[DONE]"]


async def until(condition):
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("never happened")


async def test_an_answer_has_the_real_shape():
    _, client = serve(version="7")
    answer = await generate(client, "a")
    meta = answer["meta_info"]
    assert len(answer["output_ids"]) == 20 == meta["completion_tokens"] == len(meta["output_token_logprobs"])
    assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
    assert meta["finish_reason"] == {"type": "length", "length": 20}
    assert meta["weight_versions"] == [{"version": "7", "start": 0, "end": 20}]
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["id"]) == (100, 0, "a")


@pytest.mark.parametrize("cut", [1, 7, 19])
async def test_a_continuation_elsewhere_says_what_an_undisturbed_run_says(cut):
    _, first = serve()
    _, second = serve()
    whole = await generate(first, "a", budget=20)
    part = await generate(first, "b", budget=cut)
    rest = await generate(second, "c", prompt=PROMPT + part["output_ids"], budget=20 - cut)
    assert part["output_ids"] + rest["output_ids"] == whole["output_ids"]
    logprobs = [answer["meta_info"]["output_token_logprobs"] for answer in (part, rest, whole)]
    assert logprobs[0] + logprobs[1] == logprobs[2]


async def test_other_weights_say_something_else(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    engine, client = serve(model=str(tmp_path / "one"))
    before = await generate(client, "a")
    body = {"model_path": str(tmp_path / "two"), "weight_version": "1"}
    assert (await client.post("/update_weights_from_disk", json=body)).json()["success"]
    after = await generate(client, "b")
    assert before["output_ids"] != after["output_ids"]
    assert after["meta_info"]["weight_version"] == "1" == (await client.get("/model_info")).json()["weight_version"]
    checked = (await client.post("/weights_checker", json={"action": "checksum"})).json()
    assert checked["per_engine_checksum"] == hashlib.sha256(b"two").hexdigest()
    assert len(engine.cache) == 120  # the old weights' tokens are gone
    missing = await client.post("/update_weights_from_disk", json={"model_path": str(tmp_path / "none")})
    assert (missing.status_code, missing.json()["success"]) == (400, False)


@pytest.mark.parametrize("incremental", [False, True])
async def test_a_stream_is_cumulative_unless_told_otherwise(incremental):
    engine, client = serve(tokens_per_second=20, incremental=incremental)
    reply = await client.post("/generate", json=ask("a", stream=True))
    chunks, done = events(reply.text)
    engine.settings = engine.settings.model_copy(update=FAST)
    whole = (await generate(client, "b"))["output_ids"]
    said = [i for c in chunks for i in c["output_ids"]] if incremental else chunks[-1]["output_ids"]
    assert said == whole
    assert done
    assert len(chunks) > 1
    assert [c["meta_info"]["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["meta_info"]["finish_reason"]["type"] == "length"


async def test_the_prefix_cache_is_keyed_by_the_callers_key():
    _, client = serve()
    first = await generate(client, "a", extra_key="v1")
    grown = PROMPT + first["output_ids"]
    again = await generate(client, "b", prompt=[*grown, 9, 9], extra_key="v1")
    other = await generate(client, "c", prompt=[*grown, 9, 9], extra_key="v2")
    assert again["meta_info"]["cached_tokens"] == 120
    assert other["meta_info"]["cached_tokens"] == 0
    assert (await generate(client, "d", extra_key="v1"))["meta_info"]["cached_tokens"] == 99  # the last is computed


async def test_abort_matches_rids_by_prefix_but_only_from_a_known_one():
    """Field case 18: what our own rids must be safe against."""
    engine, client = serve(tokens_per_second=1)
    tasks = {rid: asyncio.create_task(generate(client, rid)) for rid in ("ex-1", "ex-10", "ex-1-retry", "ex-2")}
    await until(lambda: len(engine.running) == 4)
    for ignored in ("", "ex", "nope"):
        assert (await client.post("/abort_request", json={"rid": ignored})).status_code == 200
    assert len(engine.running) == 4
    await client.post("/abort_request", json={"rid": "ex-1"})
    for rid in ("ex-1", "ex-10", "ex-1-retry"):
        assert (await tasks[rid])["meta_info"]["finish_reason"]["type"] == "abort"
    assert [generation.rid for generation in engine.running] == ["ex-2"]
    await client.post("/abort_request", json={"abort_all": True})
    assert (await tasks["ex-2"])["meta_info"]["finish_reason"]["type"] == "abort"


async def test_slots_and_kv_hold_requests_back():
    engine, client = serve(tokens_per_second=1, slots=2, kv_tokens=250)
    tasks = [asyncio.create_task(generate(client, f"r{i}")) for i in range(3)]
    await until(lambda: len(engine.running) + len(engine.waiting) == 3)
    load = (await client.get("/v1/loads")).json()["loads"][0]
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["num_used_tokens"]) == (2, 1, 200)
    assert (await client.post("/flush_cache")).status_code == 400
    assert (await client.post("/release_memory_occupation")).status_code == 400
    await client.post("/abort_request", json={"abort_all": True})
    await asyncio.gather(*tasks)
    assert (await client.get("/v1/loads")).json()["loads"][0]["num_used_tokens"] == 0
    assert (await client.post("/flush_cache")).status_code == 200
    assert len(engine.cache) == 0


@pytest.mark.parametrize("mode", ["in_place", "retract", "abort"])
async def test_pauses(mode):
    engine, client = serve()
    undisturbed = await generate(client, "whole", budget=1000)
    engine.settings = engine.settings.model_copy(update={"tokens_per_second": 20})  # none is over before its pause
    task = asyncio.create_task(generate(client, "a", budget=1000))
    await until(lambda: engine.running and len(engine.running[0].output) > 3)
    await client.post("/pause_generation", json={"mode": mode})
    late = asyncio.create_task(generate(client, "late", budget=2))
    await asyncio.sleep(0.05)
    said = [len(generation.output) for generation in (*engine.running, *engine.waiting)]
    assert not late.done()
    await client.post("/update_weight_version", json={"new_version": "1", "abort_all_requests": False})
    engine.settings = engine.settings.model_copy(update=FAST)
    await client.post("/continue_generation")
    answer = await task
    if mode == "abort":
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert answer["output_ids"] == undisturbed["output_ids"][: len(answer["output_ids"])]
    else:
        cut = said[0]
        assert answer["output_ids"] == undisturbed["output_ids"]
        spans = [(s["version"], s["start"], s["end"]) for s in answer["meta_info"]["weight_versions"]]
        assert spans == [("0", 0, cut), ("1", cut, 1000)]
    assert (await late)["meta_info"]["weight_version"] == "1"


async def test_what_it_refuses():
    _, client = serve(context=110)
    for body in (ask("a", prompt=[1] * 110), ask("b", budget=11), ask("c", prompt=[1000]), ask("d", prompt=[])):
        if body["rid"] == "d":
            body["input_ids"] = []
        assert (await client.post("/generate", json=body)).status_code == 400
    body = ask("e")
    body["sampling_params"]["bogus"] = 1
    assert (await client.post("/generate", json=body)).status_code == 400
    # As the real one: at the edge of the context an answer ends two tokens early.
    assert (await generate(client, "f", budget=10))["meta_info"]["finish_reason"] == {"type": "length", "length": 8}


@pytest.mark.parametrize(
    ("fault", "tokens", "finish", "done"),
    [
        ({"kind": "close", "after_tokens": 5}, 5, None, False),
        ({"kind": "close_done", "after_tokens": 5}, 5, None, True),
        ({"kind": "abort", "after_tokens": 5}, 5, "abort", True),
        ({"kind": "abort"}, 0, "abort", True),
        ({"kind": "wrong_length", "after_tokens": 5}, 20, "length", True),
    ],
)
async def test_faults(fault, tokens, finish, done):
    engine, client = serve()
    assert (await client.post("/faults", json=fault)).status_code == 200
    chunks, ended = events((await client.post("/generate", json=ask("a", stream=True))).text)
    reason = chunks[-1]["meta_info"]["finish_reason"]
    assert (len(chunks[-1]["output_ids"]), reason and reason["type"], ended) == (tokens, finish, done)
    if fault["kind"] == "wrong_length":
        assert len(chunks[-1]["meta_info"]["output_token_logprobs"]) == tokens - 1
    assert (await generate(client, "b"))["meta_info"]["finish_reason"]["type"] == "length"  # it struck once
    assert not engine.running


@pytest.mark.parametrize(
    ("fault", "tokens", "finish"),
    [
        ({"kind": "short", "after_tokens": 5}, 5, "length"),
        ({"kind": "overrun", "tokens": 3}, 23, "length"),
        ({"kind": "misaligned"}, 20, "length"),
        ({"kind": "label", "after_tokens": 5, "label": "mine"}, 20, "length"),
        ({"kind": "clump", "tokens": 6}, 20, "length"),
    ],
)
async def test_faults_of_the_tokens(fault, tokens, finish):
    _, client = serve(tokens_per_second=1000)
    await client.post("/faults", json=fault)
    chunks, done = events((await client.post("/generate", json=ask("a", stream=True))).text)
    meta = chunks[-1]["meta_info"]
    assert (len(chunks[-1]["output_ids"]), meta["finish_reason"]["type"], done) == (tokens, finish, True)
    ids = [entry[1] for entry in meta["output_token_logprobs"]]
    assert (ids == chunks[-1]["output_ids"]) is (fault["kind"] != "misaligned")
    labels = ["0", "mine"] if fault["kind"] == "label" else ["0"]
    assert [span["version"] for span in meta["weight_versions"]] == labels
    if fault["kind"] == "clump":
        assert all(len(b["output_ids"]) - len(a["output_ids"]) >= 6 for a, b in itertools.pairwise(chunks[:-1]))


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        ({"kind": "refuse", "status": 429, "retry_after": "2"}, 429, "refused"),
        ({"kind": "garbage"}, 200, "It works!"),
        ({"kind": "torn", "after_tokens": 3}, 200, 'data: {"output_ids": [1, 2'),
    ],
)
async def test_faults_of_the_reply(fault, status, text):
    _, client = serve()
    await client.post("/faults", json=fault)
    reply = await client.post("/generate", json=ask("a", stream=True))
    assert (reply.status_code, text in reply.text) == (status, True)
    assert reply.headers.get("retry-after") == fault.get("retry_after")


async def test_an_abort_can_be_lost():
    engine, client = serve(tokens_per_second=1)
    asking = asyncio.create_task(generate(client, "a"))
    await until(lambda: engine.running)
    await client.post("/faults", json={"kind": "lose_abort"})
    await client.post("/abort_request", json={"rid": "a"})
    assert engine.running
    await client.post("/abort_request", json={"rid": "a"})
    assert (await asking)["meta_info"]["finish_reason"]["type"] == "abort"
    assert engine.counts["aborted"] == 1


async def test_a_least_length_and_grammars():
    settings = {"mean_output_tokens": 1, "model": ""}
    _, client = serve(**settings)
    body = ask("a")
    body["sampling_params"] = {"max_new_tokens": 20, "min_new_tokens": 7, "stop_token_ids": [2]}
    answer = (await client.post("/generate", json=body)).json()
    assert (len(answer["output_ids"]), answer["output_ids"][-1]) == (8, 2)  # none among the first 7
    body["sampling_params"]["json_schema"] = "{}"
    assert (await client.post("/generate", json=body)).status_code == 400
    assert (await client.get("/server_info")).json()["grammar_backend"] == "none"
    _, able = serve(**settings, grammar_backend="xgrammar")
    assert (await able.post("/generate", json=body)).status_code == 200


@pytest.mark.parametrize("described", [True, False])
async def test_the_chat_route_of_other_proxies(tmp_path, described):
    _, client = serve(model=str(write_folder(tmp_path / "m")) if described else "")
    assert (await client.get("/v1/models")).json()["data"][0]["id"] == "policy"
    body = {
        "model": "policy",
        "messages": [{"role": "user", "content": "hello there"}],
        "max_tokens": 12,
        "ignore_eos": True,
    }
    whole = (await client.post("/v1/chat/completions", json=body)).json()
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 12
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks, done = events((await client.post("/v1/chat/completions", json={**body, **options})).text)
    assert done
    assert chunks[-1]["usage"] == whole["usage"]
    said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
    assert said == whole["choices"][0]["message"]["content"] != ""
    assert (await client.post("/v1/chat/completions", json={"messages": 7})).status_code == 400


async def test_control_routes_want_the_admin_key():
    _, client = serve(admin_api_key="secret")
    assert (await client.post("/flush_cache")).status_code == 401
    assert (await client.post("/flush_cache", headers={"authorization": "Bearer secret"})).status_code == 200
    assert (await generate(client, "a"))["meta_info"]["completion_tokens"] == 20


def test_a_chain_does_not_depend_on_where_it_is_cut():
    assert chain(PROMPT)[:50] == chain(PROMPT[:50])
    assert len(set(chain([3] * 1000))) == 1000

"""What cannot be carried to another engine: it begins again while nobody has heard anything, else it ends clearly.

Field cases 21 and 22: penalties, grammars, a least length.
"""

import asyncio
import json

import pytest
from pydantic import ValidationError

from tests.workers.proxy.conftest import sse, text_of, user
from tests.workers.proxy.test_moves import ENDLESS, SLOW, checked
from workers.proxy.continuation import carries_over
from workflows.messages.burst import BurstSpec, Sampling

SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
ABLE = {"grammar_backend": "xgrammar"}
PENALTIES = [{"presence_penalty": 0.5}, {"frequency_penalty": 0.5}, {"repetition_penalty": 1.1}]


async def cut(stage, penalties, **body):
    """One request, moved in mid-answer from cell-1 to cell-0."""
    await stage.engine(**ABLE, **ENDLESS)
    await stage.engine(**ABLE, **SLOW)
    await stage.register(**penalties)
    asking = asyncio.create_task(stage.post(user("go"), max_tokens=400, **body))
    await stage.speaking(1, 4)
    await stage.reroute(1)
    await stage.cancel(1)
    return await asking


@pytest.mark.parametrize(
    ("penalties", "body"),
    [*((penalty, {}) for penalty in PENALTIES), ({}, {"response_format": SCHEMA})],
)
async def test_unheard_it_begins_again(stage, penalties, body):
    response = await cut(stage, penalties, **body)
    assert response.status_code == 200, response.text
    call = await checked(stage, response.json()["choices"][0]["message"]["content"], 400)
    first, second = stage.segments(call)
    assert (first["ended"], first["output_tokens"]) == ("discarded", 0)
    assert (second["ended"], second["output_tokens"]) == ("length", 400)
    assert second["prompt_tokens"] == first["prompt_tokens"] == len(call.prompt_ids)
    assert response.json()["usage"]["completion_tokens"] == 400


@pytest.mark.parametrize(("penalties", "body"), [(PENALTIES[0], {}), ({}, {"response_format": SCHEMA})])
async def test_heard_it_ends_in_an_error(stage, penalties, body):
    """Never a 200 with corrupted content: the beginning stays what it was, and no finish follows."""
    response = await cut(stage, penalties, stream=True, **body)
    events, done = sse(response.text)
    assert not done
    assert events[-1]["error"]["code"] == "no_engine"
    assert "cannot be carried" in events[-1]["error"]["message"]
    assert all(choice["finish_reason"] is None for event in events for choice in event.get("choices", []))
    (call,) = await stage.calls()
    assert (call.state, call.output_ids) == ("failed", ())
    whole = stage.chat.decode(stage.undisturbed(call.prompt_ids, 400))
    assert whole.startswith(text_of(events))
    assert text_of(events)
    again = await stage.ask(user("go"), max_tokens=400, **body)
    assert again["choices"][0]["message"]["content"] == whole


async def test_a_queued_one_just_moves(stage):
    """Nothing was sampled yet, so there is nothing to carry."""
    await stage.engine(open_door=False, **ABLE, **ENDLESS)
    await stage.register(presence_penalty=1.0)
    asking = asyncio.create_task(stage.post(user("go"), stream=True, max_tokens=9))
    await asyncio.sleep(0.1)
    await stage.door(0, version=1)
    events, done = sse((await asking).text)
    assert done
    await checked(stage, text_of(events), 9)


async def test_a_fleet_without_grammars_says_so_at_once(stage):
    engine = await stage.engine(**ENDLESS)
    await stage.register()
    response = await stage.post(user("go"), response_format=SCHEMA, max_tokens=9)
    assert response.status_code == 400
    assert "cannot constrain" in response.json()["error"]["message"]
    assert engine.counts["requests"] == 0
    assert await stage.calls() == []


async def test_a_constrained_request_goes_where_it_can(stage):
    await stage.engine(**ABLE, **ENDLESS)
    await stage.engine(**ENDLESS)  # cell-1 would be the first choice
    await stage.register()
    await stage.ask(user("go"), response_format=SCHEMA, max_tokens=9)
    (call,) = await stage.calls()
    assert [segment["engine"] for segment in stage.segments(call)] == ["cell-0"]


async def test_what_is_imposed_reaches_the_engine(stage, monkeypatch):
    engine = await stage.engine(**ABLE, **ENDLESS)
    await stage.register(**PENALTIES[0], **PENALTIES[1], **PENALTIES[2])
    seen = []
    new = engine.new_generation
    monkeypatch.setattr(engine, "new_generation", lambda body: seen.append(body["sampling_params"]) or new(body))
    await stage.ask(user("go"), response_format=SCHEMA, max_tokens=3)
    (sampling,) = seen
    assert (sampling["presence_penalty"], sampling["frequency_penalty"]) == (0.5, 0.5)
    assert sampling["repetition_penalty"] == 1.1
    assert json.loads(sampling["json_schema"]) == {"type": "object"}


async def test_a_least_length_is_that_of_one_request(stage):
    """Field case 21: 40 at least, cut after 30 and after 5 more."""
    await stage.engine(mean_output_tokens=1)
    await stage.register()
    for tokens in (30, 5):
        await stage.fault(0, kind="abort", after_tokens=tokens)
    reply = await stage.ask(user("go"), max_tokens=60, min_tokens=40)
    (call,) = await stage.calls()
    assert [segment["output_tokens"] for segment in stage.segments(call)] == [30, 5, 6]
    assert (len(call.output_ids), call.finish) == (41, "stop")
    assert reply["usage"]["completion_tokens"] == 41


def test_what_carries_over():
    assert carries_over(Sampling(temperature=0.3, top_p=0.9, top_k=4), constrained=False)
    assert not carries_over(Sampling(), constrained=True)
    for penalty in PENALTIES:
        assert not carries_over(Sampling(**penalty), constrained=False)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_penalties_are_refused_for_training(penalty):
    burst = {"run": "r", "name": "b", "tasks": "t"}
    with pytest.raises(ValidationError, match="repetition_penalty"):
        BurstSpec(**burst, sampling=penalty)
    assert BurstSpec(**burst, purpose="evaluate", sampling=penalty).sampling.penalises

"""The real SGLang server on CPU: what the rest of the system relies on."""

import asyncio

import pytest
import torch
from safetensors.torch import load_file

from infra.engine import VersionSpan, released
from infra.engine.fingerprint import engine_checksums, verify_weights
from tests.workers.cell.rollout.conftest import LEASES
from workflows.messages.errors import InvalidRequest, VersionMismatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def expected_checksum(folder):
    return engine_checksums(load_file(folder / "model.safetensors"), tied_embeddings=True)


async def test_greedy_answers_repeat_to_the_last_bit_and_match_a_plain_model(engines, models, prompt):
    from transformers import AutoModelForCausalLM

    first, other = engines
    once = await first.generate(prompt, 60)
    await first.client.flush_cache()
    again, elsewhere = await first.generate(prompt, 60), await other.generate(prompt, 60)
    assert (once.ids, once.logprobs) == (again.ids, again.logprobs) == (elsewhere.ids, elsewhere.logprobs)
    assert once.end.finish == "length"

    model = AutoModelForCausalLM.from_pretrained(models["a"], dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + once.ids])).logits[0, len(prompt) - 1 : -1]
    plain = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(once.ids).unsqueeze(1)).squeeze(1)
    assert (plain - torch.tensor(once.logprobs)).abs().max() < 1e-4
    assert logits.argmax(-1).tolist() == once.ids


async def test_sampling_follows_its_seed_whatever_else_runs(engines, prompt):
    engine, other = engines
    alone = await engine.generate(prompt, 40, temperature=1.0, sampling_seed=7)
    crowd = [engine.generate(prompt[i:], 60, temperature=1.0, sampling_seed=100 + i) for i in range(1, 4)]
    crowded, *_ = await asyncio.gather(engine.generate(prompt, 40, temperature=1.0, sampling_seed=7), *crowd)
    elsewhere = await other.generate(prompt, 40, temperature=1.0, sampling_seed=7)
    assert alone.ids == crowded.ids == elsewhere.ids
    different = await engine.generate(prompt, 40, temperature=1.0, sampling_seed=8)
    unseeded = [(await engine.generate(prompt, 40, temperature=1.0)).ids for _ in range(2)]
    assert alone.ids != different.ids
    assert unseeded[0] != unseeded[1]


async def test_an_abort_ends_one_request_only(engines, prompt):
    """Field case 18: SGLang matches abort ids by prefix; ours cannot be prefixes of each other."""
    engine, _ = engines
    rids = ["0" * 34 + "01", "0" * 34 + "10", "0" * 33 + "100", "0" * 34 + "02"]
    running = [asyncio.create_task(engine.generate(prompt[i:], 1500, rid=rid)) for i, rid in enumerate(rids)]
    while (await engine.client.loads()).running < len(rids):
        await asyncio.sleep(0.02)
    for refused in ("", "0", "0" * 34):
        with pytest.raises(InvalidRequest):
            await engine.client.abort(refused)
    await engine.client.abort(rids[0])
    answers = await asyncio.gather(*running)
    assert [answer.end.finish for answer in answers] == ["abort", "length", "length", "length"]
    assert 0 < len(answers[0].ids) < 1500
    assert len(answers[0].ids) == len(answers[0].logprobs)


async def test_weights_are_replaced_and_verified_by_checksum(engines, models, prompt):
    engine, _ = engines
    before = await engine.generate(prompt, 20)
    assert (await engine.client.weights_checksum()) == expected_checksum(models["a"])
    await engine.client.update_weights_from_disk(str(models["b"]), "1")
    try:
        reported = await engine.client.weights_checksum()
        verify_weights(reported, expected_checksum(models["b"]))
        with pytest.raises(VersionMismatch, match="other weights in"):
            verify_weights(reported, expected_checksum(models["a"]))
        after = await engine.generate(prompt, 20, key="run|1|weights-b")
        assert after.ids != before.ids
        assert after.end.weight_version == "1"
        assert after.end.spans == (VersionSpan("1", 0, 20),)
        with pytest.raises(VersionMismatch):
            await engine.client.update_weights_from_disk(str(models["b"] / "missing"), "2")
        assert (await engine.client.model_info()).weight_version == "1"
    finally:
        await engine.client.update_weights_from_disk(str(models["a"]), "0")
    assert (await engine.generate(prompt, 20)).ids == before.ids


async def test_a_publish_in_place_shows_which_tokens_are_whose(engines, models, prompt):
    engine, _ = engines
    running = asyncio.create_task(engine.generate(prompt, 1800))
    while (await engine.client.loads()).running == 0:
        await asyncio.sleep(0.02)
    await engine.client.pause("in_place")
    loads = await engine.client.loads()
    assert not released(loads, None), "a paused request still holds its KV"
    await engine.client.update_weights_from_disk(str(models["b"]), "1", flush_cache=False)
    await engine.client.resume()
    try:
        spans = (await running).end.spans
        assert [span.version for span in spans] == ["0", "1"]
        assert (spans[0].start, spans[0].end, spans[1].end) == (0, spans[1].start, 1800)
    finally:
        await engine.client.update_weights_from_disk(str(models["a"]), "0")


async def test_released_is_seen_not_believed(engines, prompt):
    engine, _ = engines
    lease = next(LEASES)
    running = asyncio.create_task(engine.generate(prompt, 600, session="a"))
    while (await engine.client.loads()).running == 0:
        await asyncio.sleep(0.02)
    await engine.linker.retain(lease, ("a",))
    assert not released(await engine.client.loads(), await engine.linker.stats())
    await running
    await engine.client.flush_cache(wait_seconds=120)
    assert not released(await engine.client.loads(), await engine.linker.stats()), "pages are still pinned"
    await engine.linker.release(lease, abandon=True)
    assert released(await engine.client.loads(), await engine.linker.stats())
    await engine.client.release_memory()
    assert released(await engine.client.loads(), await engine.linker.stats())
    await engine.client.resume_memory()
    assert len((await engine.generate(prompt, 5)).ids) == 5

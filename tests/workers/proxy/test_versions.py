"""Weight versions of tokens: what the engine says, as long as it may say it (field case 24)."""

import asyncio

import httpx2

from tests.workers.proxy.conftest import until, user
from tests.workers.proxy.test_moves import ENDLESS, SLOW, checked, streamed


async def test_versions_are_those_the_engine_says(stage):
    """Field case 24: published in place in mid-answer, and then no older engine gets the rest."""
    engine = await stage.engine(version=3, **SLOW)
    await stage.engine(version=3, open_door=False, **SLOW)
    await stage.register()
    asking = asyncio.create_task(streamed(stage, 400))
    await stage.speaking(0, 5)
    await stage.door(0, open_door=False, version=4)  # announced: it is brought there in place
    async with httpx2.AsyncClient(base_url=stage.url(0), verify=False) as direct:
        await direct.post("/pause_generation", json={"mode": "in_place"})
        told = len(engine.running[0].output)
        await direct.post("/update_weight_version", json={"new_version": "4", "abort_all_requests": False})
        await direct.post("/continue_generation", json={})
    await until(lambda: len(engine.running[0].output) >= told + 5)
    await stage.door(1, version=3)
    await stage.cancel(0)
    stage.speed(0, 2000)
    await asyncio.sleep(0.3)
    assert not stage.engines[1].running  # it has a token of version 4
    assert (await stage.control.state()).waiting == 1
    await stage.door(0, version=4)
    call = await checked(stage, await asking, 400)
    assert call.version_spans == ((3, told), (4, 400 - told))
    mixed, pure = stage.segments(call)
    assert (mixed["mixed_kv_tokens"], pure["mixed_kv_tokens"]) == (mixed["output_tokens"] - told, 0)


async def test_weights_nobody_announced_do_not_answer(stage):
    """The door was opened at version 3: what says that it is 4 has been changed behind our back."""
    await stage.engine(version=3, **SLOW)
    await stage.engine(version=3, open_door=False, **ENDLESS)
    await stage.register()
    asking = asyncio.create_task(streamed(stage, 400))
    await stage.speaking(0, 5)
    async with httpx2.AsyncClient(base_url=stage.url(0), verify=False) as direct:
        await direct.post("/update_weight_version", json={"new_version": "4", "abort_all_requests": False})
    await stage.door(1, version=3)
    call = await checked(stage, await asking, 400)
    assert call.version_spans == ((3, 400),)
    assert stage.segments(call)[0]["ended"] == "died"


async def test_weights_count_that_have_only_read_the_prompt(stage):
    """Published in place before the first token: the KV may be of both, so no older engine gets the request."""
    engine = await stage.engine(version=3, prefill_tokens_per_second=0.2, **ENDLESS)
    await stage.engine(version=3, open_door=False, **ENDLESS)
    await stage.register()
    asking = asyncio.create_task(streamed(stage, 20))
    await until(lambda: engine.running)
    await stage.door(0, open_door=False, version=4)
    engine.version = "4"
    await stage.door(0, version=4)
    await stage.door(1, version=3)
    await stage.cancel(0)
    await asyncio.sleep(0.3)
    assert (await stage.control.state()).waiting == 1
    stage.engines[1].version = "4"
    await stage.door(1, version=4)
    call = await checked(stage, await asking, 20)
    assert call.version_spans == ((4, 20),)
    first, second = stage.segments(call)
    assert (first["engine"], first["output_tokens"], second["engine"]) == ("cell-0", 0, "cell-1")


async def test_unpublished_weights_do_not_answer(stage):
    await stage.engine(version="default", open_door=False)
    await stage.door(0, version=1)
    await stage.register()
    assert (await stage.post(user("go"), max_tokens=3)).status_code == 503

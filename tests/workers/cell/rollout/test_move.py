"""A request moves between two real engines with its KV, by the linker over the real transfer engine."""

import pytest

from infra.engine import released
from tests.workers.cell.rollout.conftest import LEASES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


async def hand_off(source, destination, lease: int):
    """What a transition does after the lease is armed and writes have stopped."""
    pulled = await destination.linker.pull(await source.linker.manifest(lease))
    ended = await source.linker.acknowledge(lease)
    assert ended.released
    return pulled


async def test_a_request_moved_in_mid_generation_recomputes_little_and_says_the_same(engines, prompt):
    source, destination = engines
    undisturbed = await source.generate(prompt, 1500, key="run|0|undisturbed")
    lease = next(LEASES)
    await source.linker.retain(lease, ("execution",))
    part = await source.generate(prompt, 1500, cut=100, session="execution")
    assert part.end.finish == "abort"
    assert 100 <= len(part.ids) < 1500

    pulled = await hand_off(source, destination, lease)
    assert pulled.arrived == ("execution",)
    rest = await destination.generate(prompt + part.ids, 1500 - len(part.ids), session="execution")
    prefix = len(prompt) + len(part.ids)
    assert rest.end.prompt_tokens == prefix
    assert (prefix - rest.end.cached_tokens) / prefix < 0.10
    assert part.ids + rest.ids == undisturbed.ids
    stats = await destination.linker.stats()
    assert stats.loaded_tokens >= pulled.tokens > 0

    await source.client.flush_cache(wait_seconds=120)
    assert released(await source.client.loads(), await source.linker.stats())


async def test_without_a_hand_off_it_recomputes_and_says_the_same(engines, prompt):
    source, destination = engines
    undisturbed = await source.generate(prompt, 1200, key="run|0|undisturbed")
    part = await source.generate(prompt, 1200, cut=50, session="execution")
    assert part.end.finish == "abort"
    rest = await destination.generate(prompt + part.ids, 1200 - len(part.ids), session="execution")
    assert rest.end.cached_tokens == 0
    assert part.ids + rest.ids == undisturbed.ids


async def test_an_execution_inside_a_tool_call_moves_with_its_latest_prefix(engines, prompt):
    source, destination = engines
    other = await source.generate(prompt, 8, session="other")
    first = await source.generate(prompt[:300], 64, session="execution")
    lease = next(LEASES)
    armed = await source.linker.retain(lease, ("execution",))
    assert armed.missing == ()
    pulled = await hand_off(source, destination, lease)
    assert pulled.arrived == ("execution",)
    turn = prompt[:300] + first.ids + [7, 8, 9]
    following = await destination.generate(turn, 8, session="execution")
    assert following.end.cached_tokens >= len(turn) - 2 * 16
    assert following.ids == (await source.generate(turn, 8)).ids
    assert other.ids


async def test_kv_of_other_weights_is_never_found(engines, prompt):
    source, destination = engines
    lease = next(LEASES)
    await source.generate(prompt, 8, session="execution")
    await source.linker.retain(lease, ("execution",))
    await hand_off(source, destination, lease)
    other = await destination.generate(prompt, 8, key="run|1|weights-b")
    assert other.end.cached_tokens == 0
    same = await destination.generate(prompt, 8)
    assert same.end.cached_tokens > 0.9 * len(prompt)

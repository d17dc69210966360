"""Bursts from start to end: counts, order, evaluation, wrong files."""

import pytest

from tests.workflows.world import FakeWorld, watching

pytestmark = pytest.mark.timeout(180)


async def test_a_burst_runs_to_its_end_with_exact_counters(world: FakeWorld):
    async with watching(world) as seen:
        report = await (await world.start_burst(steps=2)).result()
    assert seen[-1] == (8, 8, 8)
    assert [(step.version_before, step.version_after) for step in report.steps] == [(0, 1), (1, 2)]
    assert report.version == 2
    assert all(step.groups == 2 for step in report.steps)
    state = await world.until(world.all_serving)
    assert (state.burst, state.batch, state.accounts.ready, state.accounts.roster) == (None, None, (), {})
    assert list(world.commits) == world.opened

"""The whole measurement with real processes, without the contestants that would have to be installed."""

import pytest

from workers.bench.proxy.plan import BenchPlan
from workers.bench.proxy.run import measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def test_our_proxy_is_measured_alone(tmp_path):
    plan = BenchPlan(streams=4, output_tokens=32, tokens_per_second=200, rounds=1, pairs=3, contestants=("gyre",))
    notes: list[str] = []
    found = await measure(plan, tmp_path, notes.append)
    assert found["cpu_s_per_1k_tokens"]["gyre"] > 0
    assert set(found["bars_met"]) == {"ttft_added_ms_p50", "ttft_added_ms_p99"}
    assert found["ttft_direct_ms"]["p50"] > 0
    assert 0 < found["pieces_per_token"]["gyre"] <= 1
    assert found["prompt_tokens"] > 500
    assert any("round 1, gyre" in note for note in notes)
    assert (tmp_path / "rounds" / "records.db").stat().st_size > 0

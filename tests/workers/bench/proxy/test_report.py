import os
import subprocess
import sys
import time

import pytest

from workers.bench.proxy.child import Child
from workers.bench.proxy.load import Round
from workers.bench.proxy.plan import BenchPlan, Cores
from workers.bench.proxy.report import figures, percentile
from workflows.messages.errors import InvalidInput, Transient

CORE = min(os.sched_getaffinity(0))


def one(contestant, cpu_seconds, tokens=1000):
    return Round(contestant, tokens, 10.0, cpu_seconds, 0.5, tokens, 900)


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1), (0.001, 1)])
def test_percentiles(share, value):
    assert percentile(range(1, 101), share) == value


def test_ratios_are_taken_within_a_round():
    rounds = [one("gyre", 0.1), one("litellm", 1.0), one("gyre", 0.4), one("litellm", 2.0), one("gyre", 0.3)]
    rounds.append(one("litellm", 1.0))
    found = figures(rounds, [0.004, 0.006], {"gyre": [0.001, 0.02]})
    assert found["cpu_vs_litellm"] == 0.2
    assert found["cpu_vs_litellm_spread"] == [0.1, 0.3]
    assert found["cpu_s_per_1k_tokens"] == {"gyre": 0.3, "litellm": 1.0}
    assert (found["ttft_added_ms_p50"], found["ttft_added_ms_p99"]) == (1.0, 20.0)
    assert found["bars_met"] == {"ttft_added_ms_p50": True, "ttft_added_ms_p99": False, "cpu_vs_litellm": True}


def test_no_two_requests_are_the_same():
    plan = BenchPlan()
    assert plan.body("a", 8)["messages"] != plan.body("b", 8)["messages"]


def test_one_core_is_not_enough(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3})
    with pytest.raises(InvalidInput, match="two cores"):
        Cores.of_this_machine()


def test_cpu_time_counts_children_and_stopping_ends_them(tmp_path):
    burn = f"import time  # {tmp_path}\nwhile time.process_time() < 0.5: pass\ntime.sleep(3600)"
    script = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {burn!r}]).wait()"
    child = Child([sys.executable, "-c", script], core=CORE, log=tmp_path / "child.log", cwd=tmp_path)
    try:
        deadline = time.monotonic() + 120
        while child.cpu_seconds() < 0.3 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert child.cpu_seconds() >= 0.3
    finally:
        child.stop()
    running = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in running


async def test_a_server_that_ends_is_reported_with_its_log(tmp_path):
    child = Child([sys.executable, "-c", "print('no such port')"], core=CORE, log=tmp_path / "it.log", cwd=tmp_path)
    try:
        with pytest.raises(Transient, match="no such port"):
            await child.answers("http://127.0.0.1:9/health")
    finally:
        child.stop()

"""Two policies on the real stack, with a workload that is over in seconds."""

from pathlib import Path

import pytest

from tests.workers.bench.schedulers.test_workload import small
from workers.bench.schedulers.compare import PARTS, recorded
from workers.bench.schedulers.prediction import predicted_seconds
from workers.bench.schedulers.run import Contestant, run_one
from workflows.messages.policies import PolicySettings


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", ["waterlevel", "async"])
async def test_the_plan_is_carried_out_on_a_real_stack(policy: str, tmp_path: Path) -> None:
    workload = small()
    settings = PARTS["heavy-tailed"].policies[policy]
    if policy == "async":
        settings = settings.model_copy(update={"split": 1})
    said: list[str] = []
    ran = await run_one(workload, Contestant(label=policy, policy=settings), tmp_path / policy, said.append)
    done = ran.measured
    assert (done.executions, done.submitted) == (workload.executions,) * 2
    assert done.calls == sum(len(one.turns) for group in workload.groups for one in group)
    assert len(done.update_seconds) == workload.updates
    assert done.staleness == workload.staleness
    assert done.moves >= 1
    # What the simulator is fed with are these very executions, and it ends.
    assert ran.recorded.groups == len(workload.groups)
    assert predicted_seconds(recorded(tmp_path / policy), PolicySettings(name="waterlevel")) > 0
    assert said

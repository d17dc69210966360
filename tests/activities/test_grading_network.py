"""Whether a task's tests reach what listens on this machine: only where the task asks and the fleet lets it."""

import socket

import pytest

from activities.evaluation import EvaluationActivities
from infra.processes.isolation import isolation_here

HERE = isolation_here()


@pytest.mark.skipif(not HERE.network, reason=f"no network of one's own here: {HERE.reason}")
@pytest.mark.parametrize(("asks", "may", "reaches"), [(True, True, 1), (True, False, 0), (False, True, 0)])
async def test_loopback_is_reached_by_those_who_ask_and_may(
    host, environment, make_task, make_spec, asks, may, reaches
):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        test = f"if (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; then reached=1; else reached=0; fi\n"
        task = make_task(test + 'echo $reached > "$GYRE_LOGS_DIR/verifier/reward.txt"')
        (task / "task.toml").write_text(f"[environment]\nallow_internet = {str(asks).lower()}\n")
        spec = make_spec(task)
        await environment().run(host.harness.prepare_workspace, spec)
        await environment().run(host.harness.run_harness, spec)
        grader = EvaluationActivities(host.records, host.workspaces, host.runners, isolation=HERE, may_use_network=may)
        evaluation = await environment().run(grader.evaluate_workspace, spec)
    assert evaluation.reward == reaches, evaluation.detail

"""A cell whose role change is stuck for good boots anew: real worker and supervisor, paced engine and trainer."""

from pathlib import Path

import pytest

from tests.integration.conftest import Run
from tests.integration.scene import burst, paced_fleet
from workers.supervisor import LocalStack
from workflows.messages import ids
from workflows.messages.scheduling import Weights
from workflows.messages.transition import Direction, TransitionReport, TransitionResult, TransitionSpec
from workflows.policy.state import PolicyState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def test_the_worker_ends_its_boot_and_the_next_one_serves(tmp_path: Path) -> None:
    fleet = paced_fleet(tmp_path, run="reboot", cells=2).model_copy(update={"trainer": "paced"})
    async with LocalStack(fleet, tmp_path / "run") as stack:
        await stack.ready(timeout_seconds=300)
        run = Run(stack)
        await run.rested()
        before, pid = (await run.scheduler())["cells"][1], stack.processes()["cell-1"]
        spec = TransitionSpec(
            run="reboot",
            cell=fleet.cells[1],
            lease=9_000_000_000_000,  # above every lease of this boot; the next boot begins anew
            boot_epoch=before["boot_epoch"],
            queue=before["queue"],
            engine_url=stack.manifest.engine_url(1),
            direction=Direction.TO_ROLLOUT,
            weights=Weights(version=7, checksum="nobody has these"),
            may_reboot=True,
        )
        report = await run.client.execute_workflow(
            "RoleTransition",
            spec,
            id=ids.transition_id("reboot", 1, spec.lease),
            task_queue=ids.WORKFLOW_QUEUE,
            result_type=TransitionReport,
        )
        assert report.result is TransitionResult.REBOOTED
        assert "VersionMismatch" in report.reason
        assert {"rollout reboot", "training reboot"} <= set(report.verbs)

        async def booted(state: PolicyState) -> bool:
            boot = (await run.scheduler())["cells"][1]["boot_epoch"]
            cell = next(cell for cell in state.cells if cell.index == 1)
            return boot > before["boot_epoch"] and cell.serving  # how many boots it takes is nobody's promise

        await run.until(booted, "a later boot serves")
        assert stack.processes()["cell-1"] not in (None, pid)
        ended = await (await run.start(burst("reboot", steps=1))).result()
        assert ended["version"] == 1

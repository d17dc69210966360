"""A core of two stages and a satellite of two replicas train on trees and combine by groups; replayed to the bit."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import select

from infra.audit import audit_run
from infra.objects import ObjectStore
from infra.records.schema import batches, claims
from tests.integration.conftest import Run
from tests.integration.scene import burst, paced_fleet
from workers.cell.training.replay import recorded, replay
from workers.supervisor import LocalStack
from workflows.messages.burst import PolicySettings, Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Run]:
    folder = tmp_path_factory.mktemp("staged")
    fleet = paced_fleet(folder, run="staged", cells=2, turns=3)
    core, satellite = fleet.cells
    cells = (core.model_copy(update={"stages": 2}), satellite.model_copy(update={"replicas": 2}))
    async with LocalStack(fleet.model_copy(update={"cells": cells, "combine": "groups"}), folder / "run") as stack:
        await stack.ready(timeout_seconds=300)
        yield Run(stack)


async def test_a_burst_in_stages_is_clean_and_replays_to_the_last_bit(run: Run) -> None:
    training = Training(token_budget=128, layout="tree")
    policy = PolicySettings(hold_seconds=0.3, in_flight_depth=4)
    handle = await run.start(burst("staged", training=training, policy=policy))
    report = await handle.result()
    assert report["version"] == 2
    audit = audit_run(Path(run.stack.run_dir), at_rest=True)
    assert not audit.findings, audit.findings
    with run.stack.records.connect() as connection:
        names = connection.scalars(select(batches.c.batch).where(batches.c.gradient_checksum != "")).all()
        staged = connection.execute(select(claims).where(claims.c.cell == 0, claims.c.done_at.is_not(None))).all()
    assert len(names) == 2
    assert len(staged) > len(names), "the pipeline had nothing to overlap"
    manifest = run.stack.manifest
    for name in names:
        again = replay(
            recorded(run.stack.records, name),
            base=manifest.model_folder,
            checkpoints=manifest.checkpoints,
            objects=ObjectStore(manifest.object_store_url),
            staged=frozenset({0}),
        )
        assert again.same_bits, again

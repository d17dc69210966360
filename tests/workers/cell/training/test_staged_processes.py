"""Real processes: a core of two stages over gloo and a satellite of two replicas make one update, and die as cells."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from activities.training import prefix_group
from infra.actor import ActorClient, ActorLaunch, ActorProcess
from infra.objects import ObjectStore
from infra.ports import free_ports
from infra.processes.identity import read_stat
from infra.weights.folder import folder_checksum
from tests.workers.cell.training.material import pack, put
from tests.workers.cell.training.rig import BOOT, CLIP, twelve_executions
from tests.workers.cell.training.test_processes import KEY, ROOT, combine_request, true_norm
from workflows.messages import training as m

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
async def start(tmp_path: Path, policy: Path) -> AsyncIterator[Callable]:
    started: list[ActorProcess] = []

    async def start(cell: int) -> ActorProcess:
        launch = ActorLaunch(
            cell=cell,
            boot_epoch=1,
            port=free_ports(1)[0],
            model=policy,
            checkpoints=tmp_path / "checkpoints",
            objects_url=f"file://{tmp_path}/objects",
            log=tmp_path / f"actor-{cell}.log",
            root=ROOT,
            stages=2 - cell,
            replicas=1 + cell,
            combine="groups",
        )
        process = ActorProcess(launch, KEY)
        started.append(process)
        await process.start()
        return process

    yield start
    for process in started:
        await process.stop()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def gone(pid: int) -> bool:
    for _ in range(1000):
        stat = read_stat(pid)
        if stat is None or stat.dead:
            return True
        await asyncio.sleep(0.1)
    return False


async def run(objects: ObjectStore, client: ActorClient, indices: list[int]) -> list[m.MicroStepReply]:
    """All at once: the pipeline has several in flight."""
    steps = [put(objects, pack([twelve_executions()[index]], index=index)) for index in indices]
    requests = [m.RunMicroStep(micro_step=step, attempt=1, **CLIP, **BOOT) for step in steps]  # pyright: ignore
    return await asyncio.gather(*(client.run_micro_step(request) for request in requests))


async def test_a_core_in_stages_and_a_satellite_in_replicas_make_one_update_and_die_as_cells(
    start: Callable, policy: Path, tmp_path: Path
) -> None:
    processes = await asyncio.gather(start(0), start(1))
    objects, clients = ObjectStore(f"file://{tmp_path}/objects"), [process.client() for process in processes]
    core, satellite = clients
    base = await core.restore_base(m.RestoreBase(**BOOT))
    snapshot = await core.expose_snapshot(m.ExposeSnapshot(version=0, **BOOT))
    await satellite.pull_snapshot(m.PullSnapshot(version=0, checksum=base.checksum, manifest=snapshot.manifest, **BOOT))
    for client in clients:
        await client.resume(m.Resume(**BOOT))
        await client.open_batch(m.OpenBatch(batch="b", version=0, checksum=base.checksum, **BOOT))
    shares = [[0, 3, 6, 9, 10, 11], [1, 4, 7, 2, 5, 8]]
    replies = await asyncio.gather(*(run(objects, *pair) for pair in zip(clients, shares, strict=True)))
    assert [sorted(one.order for one in mine) for mine in replies] == [list(range(6))] * 2
    # The other replica before the front: that one gets some only if they come faster than they are computed.
    assert [{one.lane for one in mine} | {0} for mine in replies] == [{0}, {0, 1}]
    sealed = [await client.seal(m.BatchRequest(batch="b", **BOOT)) for client in clients]
    assert [len(one.accumulated) for one in sealed] == [6, 6]

    request = combine_request(*sealed)
    by_reads = await core.combine(request)
    assert by_reads.grad_norm == pytest.approx(true_norm(policy), rel=1e-5)
    await core.take_back(m.BatchRequest(batch="b", **BOOT))
    group = prefix_group(sealed[0], dict(enumerate(sealed)))
    assert group is not None
    by_group, handed_in = await asyncio.gather(
        core.combine(request.model_copy(update={"group": group})),
        satellite.contribute(m.Contribute(batch="b", group=group, **BOOT)),
    )
    assert handed_in.phase is m.BatchPhase.SEALED
    assert (by_group.gradient_checksum, by_group.checksum) == (by_reads.gradient_checksum, by_reads.checksum)
    for client in clients:
        await client.commit(m.Commit(batch="b", version=1, **BOOT))
    await core.export(m.ExportWeights(folder=str(tmp_path / "out"), version=1, checksum=by_group.checksum, **BOOT))
    assert folder_checksum(tmp_path / "out") == by_group.checksum

    (stage,) = children_of(processes[1].pid)
    os.kill(stage, signal.SIGKILL)
    assert await asyncio.wait_for(processes[1].wait(), 200) == 70
    (stage,) = children_of(processes[0].pid)
    os.kill(processes[0].pid, signal.SIGKILL)
    assert await gone(stage)
    for client in clients:
        await client.close()

"""Real actor processes: a core and a satellite over HTTP and Mooncake, and what happens when one is killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from infra.actor import ActorClient, ActorLaunch, ActorProcess
from infra.objects import ObjectStore
from infra.ports import free_ports
from infra.processes.identity import read_stat
from infra.weights.folder import folder_checksum
from tests.workers.cell.training import oracle
from tests.workers.cell.training.material import Sampled, pack, put, sampled
from tests.workers.cell.training.rig import BOOT, CLIP, UPDATE, arch_and_weights, twelve_executions
from workflows.messages import training as m
from workflows.messages.errors import ActorUnavailable, Fenced, InvalidInput, TransferFailed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[4]
KEY = "a-key-for-tests-of-the-actor"
Start = Callable[..., "asyncio.Future[ActorProcess]"]


@pytest.fixture
async def start(tmp_path: Path, policy: Path) -> AsyncIterator[Callable]:
    started: list[ActorProcess] = []

    async def start(cell: int, boot_epoch: int = 1) -> ActorProcess:
        launch = ActorLaunch(
            cell=cell,
            boot_epoch=boot_epoch,
            port=free_ports(1)[0],
            model=policy,
            checkpoints=tmp_path / "checkpoints",
            objects_url=f"file://{tmp_path}/objects",
            log=tmp_path / f"actor-{cell}-{boot_epoch}.log",
            root=ROOT,
        )
        process = ActorProcess(launch, KEY)
        started.append(process)
        status = await process.start()
        assert (status.cell, status.boot_epoch, status.version) == (cell, boot_epoch, None)
        return process

    yield start
    for process in started:
        await process.stop()


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return ObjectStore(f"file://{tmp_path}/objects")


class Stage:
    """A core and a satellite with the same weights and batch "b" open."""

    def __init__(self, core: ActorClient, satellite: ActorClient, objects: ObjectStore) -> None:
        self.core, self.satellite, self.objects = core, satellite, objects

    async def set(self) -> m.RestoreReply:
        base = await self.core.restore_base(m.RestoreBase(**BOOT))
        snapshot = await self.core.expose_snapshot(m.ExposeSnapshot(version=0, **BOOT))
        await self.satellite.pull_snapshot(
            m.PullSnapshot(version=0, checksum=base.checksum, manifest=snapshot.manifest, **BOOT)
        )
        resources = await self.core.release_snapshot(m.ReleaseSnapshot(pin=snapshot.pin, **BOOT))
        assert resources.pins == 0
        for client in (self.core, self.satellite):
            await client.resume(m.Resume(**BOOT))
            await client.open_batch(m.OpenBatch(batch="b", version=0, checksum=base.checksum, **BOOT))
        return base

    async def run(
        self, client: ActorClient, executions: list[Sampled], index: int, attempt: int = 1
    ) -> m.MicroStepReply:
        step = put(self.objects, pack(executions, index=index))
        return await client.run_micro_step(m.RunMicroStep(micro_step=step, attempt=attempt, **CLIP, **BOOT))

    async def seal(self, client: ActorClient) -> m.SealReply:
        return await client.seal(m.BatchRequest(batch="b", **BOOT))


def combine_request(core: m.SealReply, *others: m.SealReply) -> m.Combine:
    participants = tuple(
        m.Participant(cell=o.cell, boot_epoch=o.boot_epoch, accumulated=o.accumulated, manifest=o.manifest)
        for o in others
        if o.manifest is not None
    )
    return m.Combine(
        batch="b",
        own=core.accumulated,
        participants=participants,
        valid_executions=12,
        counters={"cursor": 5},
        **UPDATE,
        **BOOT,
    )


def true_norm(policy: Path) -> float:
    arch, weights = arch_and_weights(policy)
    gradient = oracle.batch_gradient(arch, weights, twelve_executions(), 12, 0.2, 0.28)[1]
    return sum(float((tensor**2).sum()) for tensor in gradient.values()) ** 0.5


async def test_core_and_satellite_make_one_update_and_publish(
    start: Callable, objects: ObjectStore, policy: Path, tmp_path: Path
) -> None:
    core, satellite = await asyncio.gather(start(0), start(1))
    async with core.client() as c, satellite.client() as s:
        stage = Stage(c, s, objects)
        base = await stage.set()
        executions = twelve_executions()
        replies = await asyncio.gather(
            *(stage.run(c if index % 3 == 0 else s, [executions[index]], index) for index in range(12))
        )
        assert [reply.cell for reply in replies] == [0 if index % 3 == 0 else 1 for index in range(12)]
        sealed = await asyncio.gather(stage.seal(c), stage.seal(s))
        assert [len(reply.accumulated) for reply in sealed] == [4, 8]
        request = combine_request(*sealed)
        update = await c.combine(request)
        assert update.grad_norm == pytest.approx(true_norm(policy), rel=1e-4)
        assert await c.combine(request) == update
        for client in (c, s):
            await client.commit(m.Commit(batch="b", version=1, **BOOT))
        assert update.checksum != base.checksum

        snapshot = await c.expose_snapshot(m.ExposeSnapshot(version=1, **BOOT))
        pull = m.PullSnapshot(version=1, checksum=update.checksum, manifest=snapshot.manifest, **BOOT)
        assert (await s.pull_snapshot(pull)).checksum == update.checksum
        published = tmp_path / "published"
        await s.export(m.ExportWeights(folder=str(published), version=1, checksum=update.checksum, **BOOT))
        assert folder_checksum(published) == update.checksum
        await c.release_snapshot(m.ReleaseSnapshot(pin=snapshot.pin, **BOOT))
        released = await s.release(m.Release(lease_epoch=3, **BOOT))
        assert (released.gradient_bytes, released.pins) == (0, 0)
        assert released.resident_bytes < 800e6
        with pytest.raises(Fenced, match="lease 2"):
            await s.resume(m.Resume(lease_epoch=2, **BOOT))


async def test_the_satellite_is_killed_during_a_micro_step(start: Callable, objects: ObjectStore, policy: Path) -> None:
    core, satellite = await asyncio.gather(start(0), start(1))
    async with core.client() as c, satellite.client() as s:
        stage = Stage(c, s, objects)
        await stage.set()
        executions = twelve_executions()
        for index in range(6):
            await stage.run(c, [executions[index]], index)
        for index in (6, 7):
            await stage.run(s, [executions[index]], index)
        early = await stage.seal(s)  # what it would have offered
        long = [sampled(f"long{k}", 1.0, 10, 1500) for k in range(20)]
        await s.open_batch(m.OpenBatch(batch="b", version=0, checksum=(await s.status()).checksum or "", **BOOT))
        running = asyncio.create_task(stage.run(s, long, 8))
        while not (await s.status(timeout_seconds=120)).busy:
            await asyncio.sleep(0.01)
        assert (await s.status(timeout_seconds=120)).accumulated == 2  # answers while it computes
        os.kill(satellite.pid, signal.SIGKILL)
        with pytest.raises(ActorUnavailable):
            await running
        assert await asyncio.wait_for(satellite.wait(), 120) == -signal.SIGKILL
        with pytest.raises(TransferFailed):
            await c.combine(combine_request(await stage.seal(c), early))
        await c.open_batch(m.OpenBatch(batch="b", version=0, checksum=(await c.status()).checksum or "", **BOOT))
        for index in range(6, 12):
            await stage.run(c, [executions[index]], index, attempt=2)
        update = await c.combine(combine_request(await stage.seal(c)))
        assert update.micro_steps == 12
        assert update.grad_norm == pytest.approx(true_norm(policy), rel=1e-4)


async def test_the_core_is_killed_after_its_update(start: Callable, objects: ObjectStore) -> None:
    core, satellite = await asyncio.gather(start(0), start(1))
    async with core.client() as c, satellite.client() as s:
        stage = Stage(c, s, objects)
        await stage.set()
        executions = twelve_executions()
        await stage.run(c, executions[:5], 0)
        await stage.run(s, executions[5:], 1)
        offered = await stage.seal(s)
        update = await c.combine(combine_request(await stage.seal(c), offered))
        os.kill(core.pid, signal.SIGKILL)
        await core.wait()

    again = await start(0, boot_epoch=2)
    async with again.client() as c, satellite.client() as s:
        with pytest.raises(Fenced, match="boot epoch 1"):
            await c.restore_base(m.RestoreBase(**BOOT))
        # The batch had recorded the update: its checkpoint is the state to go on from.
        restored = await c.restore_checkpoint(
            m.RestoreCheckpoint(boot_epoch=2, version=update.version, checksum=update.checksum)
        )
        assert (restored.checksum, restored.counters) == (update.checksum, {"cursor": 5})
        assert (await c.status()).optimizer_steps == 1
        # The satellite had kept its gradient until the commit.
        assert (await s.status()).accumulated == 1
        assert (await s.commit(m.Commit(batch="b", version=1, **BOOT))).phase is m.BatchPhase.CLOSED
        await c.commit(m.Commit(boot_epoch=2, batch="b", version=1))


async def test_control_routes_are_guarded_and_name_what_is_wrong(start: Callable, policy: Path) -> None:
    import httpx2 as httpx

    core = await start(0)
    async with ActorClient(core.launch.url, "another key") as stranger:
        with pytest.raises(ActorUnavailable, match="401"):
            await stranger.status()
        with pytest.raises(ActorUnavailable, match="401"):
            await stranger.resume(m.Resume(**BOOT))
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=core.launch.url, headers=headers, trust_env=False) as http:
        answer = await http.post("/open_batch", json={"boot_epoch": 1, "batch": "b", "version": -1, "checksum": "x"})
        assert (answer.status_code, answer.json()["error"], answer.json()["field"]) == (400, "InvalidInput", "version")
        answer = await http.post("/seal", json={"boot_epoch": 1, "batch": "b", "bach": "c"})
        assert (answer.status_code, answer.json()["field"]) == (400, "bach")
    async with core.client() as client:
        base = await client.restore_base(m.RestoreBase(**BOOT))
        assert base.version == 0
        junk = ObjectStore(core.launch.objects_url).put("junk", b"junk")
        with pytest.raises(InvalidInput, match="payload"):
            await client.replay_logprobs(m.ReplayLogprobs(payload=junk, **BOOT))


async def test_an_actor_dies_with_the_process_that_started_it(tmp_path: Path, policy: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from infra.actor import ActorLaunch, ActorProcess
folder, model, root, port = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
async def main():
    launch = ActorLaunch(cell=1, boot_epoch=1, port=port, model=model, checkpoints=folder,
                         objects_url=f"file://{folder}", log=folder / "actor.log", root=root)
    process = ActorProcess(launch, "key")
    await process.start()
    print(process.pid, flush=True)
    await asyncio.sleep(120)
asyncio.run(main())
"""
    arguments = [str(tmp_path), str(policy), str(ROOT), str(free_ports(1)[0])]
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as parent:
        assert parent.stdout is not None
        pid = int(await asyncio.to_thread(parent.stdout.readline))
        assert read_stat(pid) is not None
        parent.kill()
    for _ in range(1200):
        stat = read_stat(pid)
        if stat is None or stat.dead:
            return
        await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the actor outlived its parent")


async def test_an_actor_that_cannot_start_says_why(tmp_path: Path) -> None:
    launch = ActorLaunch(
        cell=0,
        boot_epoch=1,
        port=free_ports(1)[0],
        model=tmp_path / "nothing",
        checkpoints=tmp_path,
        objects_url=f"file://{tmp_path}",
        log=tmp_path / "actor.log",
        root=ROOT,
    )
    process = ActorProcess(launch, KEY)
    with pytest.raises(ActorUnavailable, match=r"ended with code 1(.|\n)*config\.json"):
        await process.start()
    assert not process.is_alive

"""kill -9 of the core's actor at ten random points, also in the middle of writing a checkpoint: nothing is lost,
nothing is trained twice, and the weights are those of the run that nobody disturbed, to the last bit.

Field cases 52 and 53: the sample position never runs ahead of what was trained, and version, optimizer steps and
counters come back together. Recorded trajectories, packed by the product's own packer; one cell, one thread. Here the
newest checkpoint that verifies decides where to go on, and what its ledgers name is what has been trained.
"""

import asyncio
import json
import os
import random
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from activities.trajectories.growth import grow
from activities.trajectories.harvest import harvest
from activities.trajectories.packing import Piece
from activities.trajectories.packing import pack as pack_pieces
from infra.actor import ActorClient, ActorLaunch
from infra.checkpoints import CheckpointStore
from infra.micro_steps import decode
from infra.objects import ObjectStore
from infra.ports import free_ports
from infra.processes.identity import read_stat
from tests.activities.trajectories.strategies import grow as record
from tests.activities.trajectories.test_oracle import provenance, request
from tests.workers.cell.training.material import put
from tests.workers.cell.training.rig import CLIP, UPDATE
from workflows.messages import training as m
from workflows.messages.batch_ledger import BatchLedger
from workflows.messages.burst import Selection
from workflows.messages.errors import ActorUnavailable, CheckpointUnusable
from workflows.messages.group import MicroStep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[4]
BATCHES, KILLS, KEY = 14, 10, secrets.token_hex(16)
SLOW_DISK_SECONDS = 0.08
"""Far more than passes between two looks at a draft, so that a checkpoint is caught while it is written."""
R = TypeVar("R")


class Template:
    """The warm process; `fork` answers the pid of a new actor."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.workers.cell.training.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        assert self._line() == "ready"

    def fork(self, launch: ActorLaunch, fsync_seconds: float) -> int:
        arguments = launch.command()[3:]
        arguments[arguments.index("--parent") + 1] = str(self._process.pid)
        order = {"arguments": arguments, "key": KEY, "log": str(launch.log), "fsync_seconds": fsync_seconds}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._line())

    def close(self) -> None:
        with self._process:
            self._process.kill()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    warm = Template()
    yield warm
    warm.close()


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[list[MicroStep]]]:
    """An object store, and in it micro-steps of recorded executions, three a batch; half of them as trees."""
    url = f"file://{tmp_path_factory.mktemp('objects')}"
    objects = ObjectStore(url)
    stored: list[list[MicroStep]] = []
    for number in range(BATCHES):
        pieces = []
        for member in range(3):
            name = f"run/{number}/{member}"
            calls = record(100 * number + member, 9, 5)
            tree = harvest(grow(name, calls, seed=1, selection=Selection(most_paths=None)))
            if tree.target_tokens:
                pieces.append(Piece(tree, 1.0 - member, tree.target_tokens, provenance(name)))
        asked = request("tree" if number % 2 else "flat", 24).model_copy(update={"batch": f"batch/{number}"})
        stored.append([put(objects, step) for step in pack_pieces(pieces, asked)])
    assert all(len(steps) > 1 for steps in stored)
    return url, stored


@dataclass
class Kill:
    """One `kill -9`, `after` so many seconds: at the how-manieth request, while a checkpoint is being written, or once
    it has its name."""

    when: str
    after: float
    requests: int = 0
    struck: str = "nothing"


@dataclass
class Cell:
    """A core and whoever drives it: the way a batch does, starting again where the newest valid checkpoint is."""

    template: Template
    folder: Path
    policy: Path
    objects_url: str
    stored: list[list[MicroStep]]
    boot: int = 0
    requests: int = 0
    attempts: Counter[str] = field(default_factory=Counter)

    async def train(self, kill: Kill | None = None) -> m.ActorStatus | None:
        """One boot, from its start to the last batch, or until it is killed (None)."""
        self.boot, self.requests = self.boot + 1, 0
        self.folder.mkdir(exist_ok=True)
        launch = ActorLaunch(
            cell=0,
            boot_epoch=self.boot,
            port=free_ports(1)[0],
            model=self.policy,
            checkpoints=self.folder / "checkpoints",
            objects_url=self.objects_url,
            log=self.folder / "actor.log",
            root=ROOT,
            keep_checkpoints=BATCHES,
        )
        pid = self.template.fork(launch, SLOW_DISK_SECONDS if kill is not None and kill.when != "requests" else 0.0)
        try:
            async with ActorClient(launch.url, KEY) as client:
                await answering(client, pid)
                watch = asyncio.create_task(self._strike(kill, pid)) if kill is not None else None
                try:
                    return await self._all_batches(client)
                except ActorUnavailable:
                    assert watch is not None
                    await asyncio.wait_for(watch, 120)
                    return None
                finally:
                    if watch is not None:
                        watch.cancel()
        finally:
            if (stat := read_stat(pid)) is not None and not stat.dead:
                os.kill(pid, signal.SIGKILL)

    async def _all_batches(self, client: ActorClient) -> m.ActorStatus:
        fence = {"boot_epoch": self.boot}
        try:
            reply = await client.restore_checkpoint(m.RestoreCheckpoint(**fence))
            assert reply.ledger is not None
            await client.commit(m.Commit(**fence, batch=reply.ledger.batch, version=reply.version))
            assert reply.counters == {"position/tasks": reply.version}
        except CheckpointUnusable:
            reply = await client.restore_base(m.RestoreBase(**fence))
        await client.resume(m.Resume(**fence))
        for number in range(reply.version, BATCHES):
            await self._batch(client, number)
        return await client.status()

    async def _batch(self, client: ActorClient, number: int) -> None:
        fence, batch = {"boot_epoch": self.boot}, f"batch/{number}"
        held = await self._ask(client.status())
        assert held.version == held.optimizer_steps == number
        opening = m.OpenBatch(**fence, batch=batch, version=number, checksum=held.checksum or "")
        await self._ask(client.open_batch(opening))
        self.attempts[batch] += 1
        for step in self.stored[number]:
            attempt = self.attempts[batch]
            task = m.RunMicroStep(**fence, micro_step=step, attempt=attempt, **CLIP)
            await self._ask(client.run_micro_step(task))
        sealed = await self._ask(client.seal(m.BatchRequest(**fence, batch=batch)))
        combine = m.Combine(
            **fence,
            batch=batch,
            own=sealed.accumulated,
            participants=(),
            valid_executions=3,
            counters={"position/tasks": number + 1},
            **UPDATE,
        )
        reply = await self._ask(client.combine(combine))
        await self._ask(client.commit(m.Commit(**fence, batch=batch, version=reply.version)))

    async def _ask(self, call: Awaitable[R]) -> R:
        self.requests += 1
        return await call

    async def _strike(self, kill: Kill, pid: int) -> None:
        """Wait for the moment, kill, and say in the middle of what."""
        checkpoints = self.folder / "checkpoints"
        known, draft = set(checkpoints.glob("v*")), f".draft-*-{pid}"
        while self.requests < kill.requests:
            await asyncio.sleep(0.0005)
        if kill.when == "writing":
            while not any(checkpoints.glob(draft)):
                await asyncio.sleep(0.0005)
        if kill.when == "written":
            while set(checkpoints.glob("v*")) == known:
                await asyncio.sleep(0.0005)
        await asyncio.sleep(kill.after)
        os.kill(pid, signal.SIGKILL)
        while (stat := read_stat(pid)) is not None and not stat.dead:
            await asyncio.sleep(0.001)
        drafts = list(checkpoints.glob(draft))
        kill.struck = f"a draft of {len(list(drafts[0].iterdir()))} files" if drafts else "between writes"

    def trained(self) -> tuple[list[BatchLedger], Counter[tuple[str, str, int]]]:
        """The ledgers along the versions, and every target they say was trained: (execution, call, offset)."""
        kept = CheckpointStore(self.folder / "checkpoints").list()
        chain = {checkpoint.meta.version: checkpoint for checkpoint in kept}
        objects = ObjectStore(self.objects_url)
        ledgers, targets = [], Counter[tuple[str, str, int]]()
        for version in sorted(chain):
            chain[version].verify()
            ledger = chain[version].meta.ledger
            ledgers.append(ledger)
            for entry in ledger.micro_steps:
                step = decode(objects.read(f"micro-steps/{ledger.batch}/{entry.micro_step}.safetensors"))
                for path in step.header.paths:
                    for span in path.spans:
                        places = range(span.offset, span.offset + span.end - span.start)
                        targets.update((path.execution, span.call, place) for place in places)
        return ledgers, targets


async def answering(client: ActorClient, pid: int) -> None:
    for _ in range(6000):
        try:
            if (await client.status()).pid == pid:
                return
        except ActorUnavailable:
            assert read_stat(pid) is not None
        await asyncio.sleep(0.02)
    pytest.fail("the actor did not answer")


def plan(seed: int) -> list[Kill]:
    """Ten moments: at any request of the next batch, while a checkpoint is written, once it has its name."""
    draw = random.Random(seed)
    whens = ["requests"] * 4 + ["writing"] * 4 + ["written"] * 2
    draw.shuffle(whens)
    longest = {"requests": 0.03, "writing": 3 * SLOW_DISK_SECONDS, "written": SLOW_DISK_SECONDS}
    return [
        Kill(when, draw.uniform(0, longest[when]), draw.randint(1, 12) if when == "requests" else 0) for when in whens
    ]


async def test_ten_kills_change_nothing(
    template: Template,
    batches: tuple[str, list[list[MicroStep]]],
    policy: Path,
    tmp_path: Path,
) -> None:
    undisturbed = Cell(template, tmp_path / "undisturbed", policy, *batches)
    killed = Cell(template, tmp_path / "killed", policy, *batches)
    wanted = await undisturbed.train()
    kills = plan(seed=20)
    for kill in kills:
        assert await killed.train(kill) is None, f"all was trained before {kill}"
    found = await killed.train()
    assert wanted is not None
    assert found is not None
    assert (killed.boot, len(kills)) == (KILLS + 1, KILLS)
    assert sum("draft" in kill.struck for kill in kills) >= 2, [kill.struck for kill in kills]

    assert (found.version, found.checksum) == (wanted.version, wanted.checksum)
    assert (found.version, found.optimizer_steps) == (BATCHES, BATCHES)
    straight, resumed = (CheckpointStore(cell.folder / "checkpoints").last_complete() for cell in (undisturbed, killed))
    assert straight.files == resumed.files  # weights, moments, generators: every byte

    (straight_ledgers, straight_targets), (ledgers, targets) = undisturbed.trained(), killed.trained()
    assert set(targets.values()) == {1}
    assert targets == straight_targets
    for one, other in zip(straight_ledgers, ledgers, strict=True):
        assert (one.batch, one.version_before) == (other.batch, other.version_before)
        assert one.gradient_checksum == other.gradient_checksum

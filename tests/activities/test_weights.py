"""A publish that keeps KV, at a real paced engine: requests stand still, go on, and say which weights said what."""

import asyncio
import hashlib
from pathlib import Path

import httpx2
import pytest
from temporalio.testing import ActivityEnvironment

from activities.cell import Cell
from activities.memory import MemoryActivities
from activities.weights import WeightsActivities
from infra.engine import EngineClient
from workers.cell.rollout.paced.engine import PacedEngine
from workers.cell.rollout.paced.routes import paced_app
from workers.cell.rollout.paced.settings import PacedSettings
from workflows.messages.cell_steps import CellLease, LoadWeights
from workflows.messages.errors import VersionMismatch
from workflows.messages.scheduling import Weights

WEIGHTS = Weights(version=0, checksum="whatever")
BUDGET = 2000
"""Tokens of an answer that is not over before it is looked at: at the pace of `engine`, 40 s of them."""
LOAD = LoadWeights(run="r", cell=0, lease=1, weights=WEIGHTS)


class FileProof:
    """The engine must report the hash of the very file it was told to load."""

    def __init__(self, *, sound: bool = True) -> None:
        self.sound = sound

    def expect(self, folder: Path, weights: Weights) -> None:
        pass

    def verify(self, folder: Path, weights: Weights, reported_total: str, reported: dict[str, str]) -> None:
        digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        if digest != reported_total or not self.sound:
            raise VersionMismatch("other weights")


def folder(path: Path, content: bytes) -> Path:
    path.mkdir()
    (path / "model.safetensors").write_bytes(content)
    return path


@pytest.fixture
def engine(tmp_path):
    old = folder(tmp_path / "old", b"old")
    return PacedEngine(PacedSettings(model=str(old), version="7", tokens_per_second=50, prefill_tokens_per_second=1e9))


def cell_of(engine, base, proof):
    client = EngineClient("http://engine", vocabulary=1000, transport=httpx2.ASGITransport(app=paced_app(engine)))
    nothing = dict.fromkeys(("linker", "actor", "stream", "records", "published", "checkpoints"))
    peers = {"peer_actor": None, "peer_linker": None}
    return Cell(run="r", index=1, boot_epoch=1, engine=client, proof=proof, base_model=base, **nothing, **peers)


async def request(engine, rid="a" * 36):
    body = {"rid": rid, "input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": BUDGET, "ignore_eos": True}}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=paced_app(engine)), base_url="http://engine"
    ) as client:
        return (await client.post("/generate", json=body)).json()


async def speaking(engine):
    while not engine.running or len(engine.running[0].output) < 3:
        await asyncio.sleep(0.002)


async def test_running_requests_go_on_with_the_new_weights(engine, tmp_path):
    cell = cell_of(engine, folder(tmp_path / "new", b"new"), FileProof())
    asking = asyncio.create_task(request(engine))
    await speaking(engine)
    generation = engine.running[0]
    activities = WeightsActivities(cell)
    swapped = await ActivityEnvironment().run(activities.swap_weights, LOAD)
    assert swapped.bytes == sum(file.stat().st_size for file in (tmp_path / "new").glob("*.safetensors")) > 0
    assert (engine.paused, cell.paused, engine.version) == (None, False, "0")
    assert engine.running == [generation]  # the very same: nothing was cut
    engine.settings = engine.settings.model_copy(update={"tokens_per_second": 20_000})
    meta = (await asking)["meta_info"]
    (old, new) = meta["weight_versions"]
    assert (old["version"], new["version"], old["end"], new["end"]) == ("7", "0", new["start"], BUDGET)
    assert old["end"] >= 3
    assert engine.counts["aborted"] == 0
    before = engine.checksum
    again = await ActivityEnvironment().run(activities.swap_weights, LOAD)  # as after a lost answer
    assert again == swapped
    assert (engine.checksum, engine.paused) == (before, None)


async def test_unverified_weights_say_nothing(engine, tmp_path, monkeypatch):
    """It stays paused until what runs there has been cut; only then does it move, to let the aborts take effect."""
    cell = cell_of(engine, folder(tmp_path / "new", b"new"), FileProof(sound=False))
    asking = asyncio.create_task(request(engine))
    await speaking(engine)
    with pytest.raises(VersionMismatch):
        await ActivityEnvironment().run(WeightsActivities(cell).swap_weights, LOAD)
    said = len(engine.running[0].output)
    await asyncio.sleep(0.05)
    assert (engine.paused, cell.paused, len(engine.running[0].output)) == ("in_place", True, said)
    told = engine.new_generation
    heard = asyncio.Event()
    monkeypatch.setattr(engine, "new_generation", lambda body: heard.set() or told(body))
    late = asyncio.create_task(request(engine, "b" * 36))  # sent before the door closed, it waits for the pause to end
    await heard.wait()
    await cell.engine.abort("a" * 36)
    answer = await asking
    assert (answer["meta_info"]["finish_reason"]["type"], len(answer["output_ids"])) == ("abort", said)
    await cell.engine.abort("b" * 36)  # answered 200, and lost
    await ActivityEnvironment().run(MemoryActivities(cell).await_quiet, CellLease(run="r", cell=0, lease=1))
    assert (engine.paused, cell.paused, engine.running, engine.waiting) == (None, False, [], [])
    assert (await late)["meta_info"]["finish_reason"]["type"] == "abort"

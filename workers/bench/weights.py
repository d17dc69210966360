"""What trust costs when weights move: a verified pull against a plain read, a publish against the engine's own update.

The weights are made up, of a real architecture and size. Both sides of a ratio run in turn in one run; the pull is
the satellite's own (`pull_weights`, from a core's `Snapshots` in another process), the publish is the activity's, by
real actors at a real engine: pull from the core, export to memory-backed storage, load, verify by checksum.
"""

import asyncio
import itertools
import json
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from activities.cell import Cell
from activities.weights import WeightsActivities, ensure_actor_weights
from infra.actor.client import ActorClient
from infra.actor.process import ActorLaunch, ActorProcess
from infra.engine import EngineClient
from infra.ports import free_ports
from infra.records.database import open_database
from infra.transfer import TransferEndpoint
from infra.transfer.pieces import PIECE_BYTES
from infra.weights.architecture import Architecture
from infra.weights.checksum import weights_checksum
from infra.weights.folder import save_weights
from infra.weights.names import hf_shapes
from workers.cell.proof import SglangProof
from workers.cell.rollout.command import CHECKOUT, EngineParameters
from workers.cell.rollout.server import EngineServer
from workers.cell.training.snapshots import Snapshots, pull_weights
from workers.cell.training.whole import HostPolicy
from workflows.messages.cell_steps import LoadWeights
from workflows.messages.errors import TransferFailed
from workflows.messages.scheduling import Weights
from workflows.messages.training import ExportWeights, RestoreBase, SnapshotReply

KEY = "bench"
ACTOR_SECONDS = 300.0
READ_SECONDS = 120.0
NAP_SECONDS = 1e-4
PIECES_IN_FLIGHT = 2


def architecture(megabytes: int) -> dict[str, Any]:
    """The `config.json` of a Qwen3 model with at least so many megabytes (10^6) of fp32 weights."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 4096,
        "hidden_size": 768,
        "intermediate_size": 2304,
        "num_hidden_layers": 1,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    while 4 * Architecture.from_config(config).parameters < megabytes * 1_000_000:
        config["num_hidden_layers"] += 1
    return config


def make_up(arch: Architecture, seed: int) -> dict[str, torch.Tensor]:
    """Random fp32 weights under Hugging Face names."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape) if len(shape) == 1 else 0.02 * torch.randn(shape, generator=generator)
        for name, shape in hf_shapes(arch).items()
    }


# --- pull


@dataclass(frozen=True)
class PullRound:
    """Seconds for the same bytes, each into fresh memory registered for it: the bare engine in one piece, the bare
    engine in the pieces a verified read takes, and the satellite's verified pull."""

    plain: float
    plain_in_pieces: float
    pull: float


@contextmanager
def core_with(config: dict[str, Any]) -> Iterator[SnapshotReply]:
    """A process that holds made-up weights and lets them be read."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, config), daemon=True)
    process.start()
    try:
        yield SnapshotReply.model_validate_json(ours.recv())
    finally:
        ours.send("end")
        process.join(10)
        process.kill()


def _serve(pipe: Connection, config: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    policy = HostPolicy(Architecture.from_config(config))
    policy.load_hf(make_up(policy.arch, seed=1))
    snapshots = Snapshots(policy, TransferEndpoint(), boot_epoch=1)
    reply = snapshots.expose(1, weights_checksum(policy.hf_weights()))
    pipe.send(reply.model_dump_json())
    pipe.recv()


def measure_pulls(config: dict[str, Any], rounds: int) -> list[PullRound]:
    """A first round warms up and does not count."""
    arch, endpoint = Architecture.from_config(config), TransferEndpoint()
    found: list[PullRound] = []
    with core_with(config) as snapshot:
        ways = {
            "plain": lambda: _plain(endpoint, snapshot, snapshot.manifest.total_bytes),
            "plain_in_pieces": lambda: _plain(endpoint, snapshot, PIECE_BYTES),
            "pull": lambda: pull_weights(endpoint, snapshot.manifest, arch, snapshot.checksum, READ_SECONDS),
        }
        for number in range(rounds + 1):
            names = list(ways)[number % 3 :] + list(ways)[: number % 3]  # nobody is always first
            seconds = {name: _timed(ways[name]) for name in names}
            if number:
                found.append(PullRound(**seconds))
    return found


def _timed(call: Any) -> float:
    started = time.perf_counter()
    kept = call()
    seconds = time.perf_counter() - started
    del kept  # giving memory back is no part of it
    return seconds


def _plain(endpoint: TransferEndpoint, snapshot: SnapshotReply, piece_bytes: int) -> torch.Tensor:
    """What the bare transfer engine does: no checksum, one return code a piece."""
    (entry,) = snapshot.manifest.entries
    into = torch.empty(entry.bytes // 4, dtype=torch.float32)
    engine = endpoint._started()  # pyright: ignore[reportPrivateUsage]
    with endpoint.register(into):
        waiting = [(start, min(piece_bytes, entry.bytes - start)) for start in range(0, entry.bytes, piece_bytes)]
        waiting.reverse()
        flights: list[int] = []
        while waiting or flights:
            while waiting and len(flights) < PIECES_IN_FLIGHT:
                start, length = waiting.pop()
                batch = engine.batch_transfer_async_read(
                    snapshot.manifest.session, [into.data_ptr() + start], [entry.address + start], [length]
                )
                flights.append(batch)
            codes = [engine.transfer_check_status(batch) for batch in flights]
            if any(code not in (0, 1) for code in codes):
                raise TransferFailed(f"the plain read ended with codes {codes}")
            flights = [batch for batch, code in zip(flights, codes, strict=True) if code == 0]
            if flights:
                time.sleep(NAP_SECONDS)
    return into


# --- publish


@dataclass(frozen=True)
class PublishRound:
    """Seconds: SGLang's own update from the same folder; the same by way of the disk, without any proof (the trainer
    saves a folder there, the engine loads it); and a publish, whole and step by step."""

    own_update: float
    by_disk: float
    publish: float
    pull: float
    load: float
    """Export to memory-backed storage, the engine's update, its cache flushed."""
    verify: float


async def measure_publishes(config: dict[str, Any], rounds: int, weights_folder: Path) -> list[PublishRound]:
    """A first round warms up and does not count. Raises EngineUnavailable, with its log, if SGLang does not start."""
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as name:
        base = Path(name) / "model"
        arch = _write_model(base, config)
        async with AsyncExitStack() as stack:
            core, satellite = [await _actor(stack, Path(name), base, cell) for cell in range(2)]
            engine = await _engine(stack, Path(name), base, arch)
            published = weights_folder / f"gyre-bench-{Path(name).name}"
            stack.callback(shutil.rmtree, published, ignore_errors=True)
            cell = _cell(engine, core, satellite, base, published)
            stack.callback(cell.records.dispose)
            return [await _publish_round(cell, base, number) for number in range(rounds + 1)][1:]


def _write_model(base: Path, config: dict[str, Any]) -> Architecture:
    base.mkdir()
    (base / "config.json").write_text(json.dumps(config))
    arch = Architecture.from_config(config)
    save_weights(base, make_up(arch, seed=1), base.parent)
    return arch


async def _actor(stack: AsyncExitStack, folder: Path, base: Path, cell: int) -> ActorProcess:
    (port,) = free_ports(1)
    launch = ActorLaunch(
        cell=cell,
        boot_epoch=1,
        port=port,
        model=base,
        checkpoints=folder / "checkpoints",
        objects_url=f"file://{folder}/objects",
        log=folder / f"actor-{cell}.log",
        root=CHECKOUT,
    )
    process = ActorProcess(launch, KEY)
    await process.start()
    stack.push_async_callback(process.stop)
    return process


async def _engine(stack: AsyncExitStack, folder: Path, base: Path, arch: Architecture) -> EngineClient:
    (port,) = free_ports(1)
    parameters = EngineParameters(
        model_path=base, port=port, version="0", admin_key=KEY, max_total_tokens=2048, context_tokens=1024
    )
    server = EngineServer(parameters, folder / "engine.log")
    stack.push_async_callback(server.stop)
    server.start()
    client = await stack.enter_async_context(
        EngineClient(parameters.url, vocabulary=arch.vocab_size, admin_key=KEY, control_seconds=120)
    )
    await server.ready(client)
    return client


def _cell(engine: EngineClient, core: ActorProcess, satellite: ActorProcess, base: Path, published: Path) -> Cell:
    """The satellite's cell, as far as weights go."""
    nothing: dict[str, Any] = dict.fromkeys(("linker", "stream", "peer_linker"))
    return Cell(
        run="bench",
        index=1,
        boot_epoch=1,
        engine=engine,
        actor=satellite.client(timeout_seconds=ACTOR_SECONDS),
        proof=SglangProof(),
        records=open_database(f"sqlite:///{base.parent / 'records.db'}", create=True),
        published=published,
        checkpoints=published / "none",
        base_model=base,
        peer_actor=lambda _: ActorClient(core.launch.url, KEY, timeout_seconds=ACTOR_SECONDS),
        **nothing,
    )


async def _publish_round(cell: Cell, base: Path, number: int) -> PublishRound:
    """The core calls the same weights a new version; the satellite's cell publishes it to its engine."""
    version, core = number + 1, cell.peer_actor(0)
    try:
        restored = await core.restore_base(RestoreBase(boot_epoch=1, lease_epoch=0, version=version, checksum=None))
    finally:
        await core.close()
    weights = Weights(version=version, checksum=restored.checksum)
    activities = WeightsActivities(cell)
    request = LoadWeights(run=cell.run, cell=cell.index, lease=version, weights=weights)
    marks = [time.perf_counter()]
    await ensure_actor_weights(cell, weights, version, 0)
    marks.append(time.perf_counter())
    await activities.load_weights(request)
    marks.append(time.perf_counter())
    await activities.verify_engine(request)
    marks.append(time.perf_counter())
    pull, load, verify = (later - earlier for earlier, later in itertools.pairwise(marks))
    marks = [time.perf_counter()]
    await cell.engine.update_weights_from_disk(str(cell.published / f"v{version:08d}"), str(version))
    marks.append(time.perf_counter())
    on_disk = str(base.parent / "saved")
    await cell.actor.export(
        ExportWeights(boot_epoch=1, lease_epoch=version, folder=on_disk, version=version, checksum=weights.checksum)
    )
    await cell.engine.update_weights_from_disk(on_disk, str(version))
    marks.append(time.perf_counter())
    own_update, by_disk = (later - earlier for earlier, later in itertools.pairwise(marks))
    return PublishRound(own_update, by_disk, pull + load + verify, pull, load, verify)


# --- figures


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest of the ratios, round by round."""
    found = [a / b for a, b in zip(numerators, denominators, strict=True)]
    return {
        "median": round(statistics.median(found), 3),
        "min": round(min(found), 3),
        "max": round(max(found), 3),
    }


def pull_figures(rounds: Sequence[PullRound], size: int) -> dict[str, Any]:
    """`ratio`: rate of a verified pull over that of a plain read, by whichever of its two ways was faster."""
    fastest = [min(one.plain, one.plain_in_pieces) for one in rounds]
    medians = {name: statistics.median(asdict(one)[name] for one in rounds) for name in asdict(rounds[0])}
    return {
        "bytes": size,
        "rounds": len(rounds),
        "ratio": ratios(fastest, [one.pull for one in rounds]),
        "ratio_to_one_piece": ratios([one.plain for one in rounds], [one.pull for one in rounds]),
        "gigabytes_per_second": {name: round(size / seconds / 1e9, 3) for name, seconds in medians.items()},
    }


def publish_figures(rounds: Sequence[PublishRound]) -> dict[str, Any]:
    """`ratio`: seconds of a whole publish over those of SGLang's own update from the same folder, which has to be
    there; `ratio_to_by_disk`: over those of bringing it there by disk."""
    medians = {name: statistics.median(asdict(one)[name] for one in rounds) for name in asdict(rounds[0])}
    return {
        "rounds": len(rounds),
        "ratio": ratios([one.publish for one in rounds], [one.own_update for one in rounds]),
        "ratio_to_by_disk": ratios([one.publish for one in rounds], [one.by_disk for one in rounds]),
        "seconds": {name: round(seconds, 3) for name, seconds in medians.items()},
    }


async def measure(megabytes: int, *, rounds: int, publish_rounds: int, weights_folder: Path) -> dict[str, Any]:
    """Everything; without `publish_rounds` no engine is started."""
    config = architecture(megabytes)
    arch = Architecture.from_config(config)
    result: dict[str, Any] = {
        "model": {
            "architecture": config["model_type"],
            "layers": arch.layers,
            "hidden": arch.hidden_size,
            "parameters": arch.parameters,
        },
        "pull": pull_figures(await asyncio.to_thread(measure_pulls, config, rounds), 4 * arch.parameters),
    }
    if publish_rounds:
        result["publish"] = publish_figures(await measure_publishes(config, publish_rounds, weights_folder))
    return result

"""The three proxies, each started on its core in front of the same engines."""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sqlalchemy import insert

from harness_adapters.environment import PythonEnvironment
from infra.ports import free_ports
from infra.records import schema
from infra.records.database import open_database
from infra.routing import RoutingClient
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest, Secrets
from workers.bench.proxy.caller import Target
from workers.bench.proxy.child import Child
from workers.bench.proxy.engines import CHAT, CONTEXT_TOKENS, MODEL, VERSION, PacedOne
from workers.supervisor.run_folder import CHECKOUT
from workflows.messages.burst import Sampling
from workflows.messages.errors import InvalidInput
from workflows.messages.routing import DoorChange, EngineEntry, RegisterExecution

HOST = "127.0.0.1"
RUN = "bench-proxy"
_LITELLM_KEY = "sk-bench-only-key-of-a-loopback-server"
ENVIRONMENTS = CHECKOUT / "var" / "bench"


class Contestant(Protocol):
    """A proxy in front of engines. `child` is the process whose CPU time counts."""

    name: str
    child: Child

    def target(self, stream: int) -> Target:
        """Where the requests of one conversation go."""
        ...


class Gyre:
    """Ours, recording as in any run: a database of its own, one execution per conversation."""

    name = "gyre"

    def __init__(self, child: Child, port: int) -> None:
        self.child, self._port = child, port

    @classmethod
    async def start(cls, folder: Path, engines: Sequence[PacedOne], core: int, streams: int) -> "Gyre":
        port, admin_port = free_ports(2)
        manifest = RunManifest(
            fleet=Fleet(run=RUN, model=str(MODEL), context_tokens=CONTEXT_TOKENS - 8),
            root=str(CHECKOUT),
            run_dir=str(folder),
            temporal_address="",
            proxy_port=port,
            proxy_admin_port=admin_port,
            engine_ports=tuple(engine.port for engine in engines),
            actor_ports=(),
            linker_ports=(),
        )
        manifest.save()
        database = open_database(manifest.database_url, create=True)
        registrations = [_registration(stream) for stream in range(streams)]
        with database.begin() as connection:
            connection.execute(insert(schema.executions), [_row(each) for each in registrations])
        database.dispose()
        argv = [sys.executable, "-m", "workers.proxy", "--run-dir", str(folder)]
        child = Child(argv, core=core, log=folder / "gyre.log", cwd=CHECKOUT)
        try:
            await child.answers(f"{manifest.proxy_admin_url}/health")
            async with RoutingClient(manifest.proxy_admin_url, Secrets.of(folder).admin_key) as control:
                for cell, engine in enumerate(engines):
                    await _introduce(control, cell, engine)
                for registration in registrations:
                    await control.register_execution(registration)
        except BaseException:
            child.stop()
            raise
        return cls(child, port)

    def target(self, stream: int) -> Target:
        return Target(HOST, self._port, f"/x/{_token(stream)}{CHAT}", {})


async def _introduce(control: RoutingClient, cell: int, engine: PacedOne) -> None:
    name = f"cell-{cell}"
    entry = EngineEntry(
        engine=name, cell=cell, boot_epoch=1, url=engine.url, slots=engine.slots, kv_tokens=engine.kv_tokens
    )
    await control.put_engine(entry)
    await control.change_door(DoorChange(engine=name, boot_epoch=1, open=True, version=VERSION, checksum="0" * 64))


def _token(stream: int) -> str:
    return f"bench-{stream:04d}"


def _registration(stream: int) -> RegisterExecution:
    return RegisterExecution(
        execution=f"{RUN}/execution/bench/0000/{stream:02d}",
        run=RUN,
        token_sha256=hashlib.sha256(_token(stream).encode()).hexdigest(),
        attempt=1,
        seed=stream,
        sampling=Sampling(max_call_tokens=CONTEXT_TOKENS),
        call_limit=1_000_000,
    )


def _row(registration: RegisterExecution) -> dict[str, object]:
    return {
        "execution": registration.execution,
        "run": RUN,
        "burst": "bench",
        "group_index": 0,
        "member": registration.seed,
        "purpose": "train",
        "task": "bench",
        "harness": "bench",
        "client": "thin",
        "seed": registration.seed,
        "dispatch_version": VERSION,
        "sampling": registration.sampling.model_dump(),
        "call_limit": registration.call_limit,
        "token_sha256": registration.token_sha256,
        "attempt": 1,
        "state": "open",
        "workspace": "",
        "model_calls": 0,
    }


class LiteLlm:
    """litellm's proxy with one worker, its telemetry and logging off."""

    name = "litellm"

    def __init__(self, child: Child, port: int) -> None:
        self.child, self._port = child, port

    @classmethod
    async def start(cls, folder: Path, engines: Sequence[PacedOne], core: int) -> "LiteLlm":
        environment = PythonEnvironment(ENVIRONMENTS / "litellm", "bench-litellm.lock.txt")
        environment.install()
        (port,) = free_ports(1)
        models = [
            {
                "model_name": "policy",
                "litellm_params": {"model": "openai/policy", "api_base": f"{engine.url}/v1", "api_key": "none"},
            }
            for engine in engines
        ]
        config = folder / "litellm.json"  # YAML takes JSON
        config.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": _LITELLM_KEY}}))
        argv = [str(environment.python.with_name("litellm")), "--config", str(config), "--host", HOST]
        argv += ["--port", str(port), "--num_workers", "1", "--telemetry", "False"]
        quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "HOME": str(folder), "PYTHONPATH": ""}
        child = Child(argv, core=core, log=folder / "litellm.log", cwd=folder, environment=quiet)
        await _answers_or_stop(child, f"http://{HOST}:{port}/health/liveliness")
        return cls(child, port)

    def target(self, stream: int) -> Target:
        return Target(HOST, self._port, CHAT, {"authorization": f"Bearer {_LITELLM_KEY}"})


class SglangRouter:
    """sglang-router (Rust) in its regular HTTP mode; it records nothing."""

    name = "sglang-router"

    def __init__(self, child: Child, port: int) -> None:
        self.child, self._port = child, port

    @classmethod
    async def start(cls, folder: Path, engines: Sequence[PacedOne], core: int) -> "SglangRouter":
        environment = PythonEnvironment(ENVIRONMENTS / "sglang-router", "bench-sglang-router.lock.txt")
        environment.install()
        port, metrics = free_ports(2)
        argv = [str(environment.python), "-m", "sglang_router.launch_router", "--host", HOST, "--port", str(port)]
        argv += ["--policy", "round_robin", "--prometheus-port", str(metrics), "--log-level", "warn"]
        argv += ["--worker-urls", *(engine.url for engine in engines)]
        bare = {"HOME": str(folder), "PYTHONPATH": ""}
        child = Child(argv, core=core, log=folder / "sglang-router.log", cwd=folder, environment=bare)
        await _answers_or_stop(child, f"http://{HOST}:{port}/readiness")
        return cls(child, port)

    def target(self, stream: int) -> Target:
        return Target(HOST, self._port, CHAT, {})


async def _answers_or_stop(child: Child, url: str) -> None:
    try:
        await child.answers(url)
    except BaseException:
        child.stop()
        raise


async def start_contestant(
    name: str, folder: Path, engines: Sequence[PacedOne], *, core: int, streams: int
) -> Contestant:
    """Start one by name, in `folder`, installing it first if need be. Raises Transient if it does not come up."""
    if name == Gyre.name:
        return await Gyre.start(folder, engines, core, streams)
    if name == LiteLlm.name:
        return await LiteLlm.start(folder, engines, core)
    if name == SglangRouter.name:
        return await SglangRouter.start(folder, engines, core)
    raise InvalidInput(f"one of gyre, litellm, sglang-router, not {name!r}", field="contestants")

"""How a real SGLang server is started: command line and environment, as pure functions of the parameters.

CPU flags, and why: fp32 must be asked for (``auto`` turns an fp32 model into fp16); native attention, PyTorch sampling
and no overlap schedule are what runs without kernels; no tokenizer, because ids go in and come out (string stops are
therefore impossible); streaming is incremental, or a long answer costs quadratic traffic; sleep-on-idle, or an idle
engine burns a third of a core. One thread per engine keeps sums in one order: the same batch gives the same bits. A
token's logits may still differ in the last bits with what else is in the batch.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]


@dataclass(frozen=True)
class LinkerParameters:
    """The KV linker inside the engine. `pool_tokens` is the host pool; twice the device pool keeps what is live.

    `token` is the bearer token of its control port, `host` and `protocol` those of its transfer endpoint.
    """

    port: int
    token: str
    pool_tokens: int
    boot_epoch: int
    host: str = "127.0.0.1"
    protocol: str = "tcp"
    max_hold_seconds: float = 120.0


@dataclass(frozen=True)
class EngineParameters:
    """One engine. Token counts are of KV; `threads` of the CPU; `version` is what it reports for its first weights."""

    model_path: Path
    port: int
    version: str
    admin_key: str
    max_running_requests: int = 8
    max_total_tokens: int = 16384
    context_tokens: int = 4096
    page_tokens: int = 16
    memory_fraction: float = 0.5
    threads: int = 1
    seed: int = 0
    dtype: str = "float32"
    cuda: bool = False
    linker: LinkerParameters | None = None
    extra_flags: tuple[str, ...] = field(default=())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def command_line(parameters: EngineParameters) -> list[str]:
    """``python -m sglang.launch_server`` with everything the parameters say."""
    p = parameters
    flags = {
        "--model-path": str(p.model_path),
        "--host": "127.0.0.1",
        "--port": str(p.port),
        "--admin-api-key": p.admin_key,
        "--weight-version": p.version,
        "--dtype": p.dtype,
        "--max-running-requests": str(p.max_running_requests),
        "--max-total-tokens": str(p.max_total_tokens),
        "--context-length": str(p.context_tokens),
        "--page-size": str(p.page_tokens),
        "--mem-fraction-static": str(p.memory_fraction),
        "--random-seed": str(p.seed),
        "--grammar-backend": "none",
        "--log-level": "info",
        "--log-level-http": "warning",
    }
    switches = ["--skip-server-warmup", "--skip-tokenizer-init", "--incremental-streaming-output", "--sleep-on-idle"]
    if p.cuda:
        switches += ["--enable-memory-saver", "--enable-deterministic-inference"]
    else:
        flags |= {"--device": "cpu", "--attention-backend": "torch_native", "--sampling-backend": "pytorch"}
        switches += ["--disable-overlap-schedule"]
    if p.linker is not None:
        switches += ["--enable-unified-cache-external-linker"]
        flags["--unified-cache-external-linker-backend"] = "dynamic"
        flags["--unified-cache-external-linker-config"] = _linker_config(p.linker)
    pairs = [part for flag in flags.items() for part in flag]
    return [sys.executable, "-m", "sglang.launch_server", *pairs, *switches, *p.extra_flags]


def environment(parameters: EngineParameters, base: Mapping[str, str]) -> dict[str, str]:
    """`base` plus what the engine needs. Compilation is off on CPU: it would want a C++ compiler and cost seconds.

    A health check must not generate: it would take a second, join real requests in their batch and count as running.
    """
    path = [str(CHECKOUT), str(HERE / "plugin")]
    added = {
        "SGLANG_PLUGINS": "opengyre",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": str(parameters.threads),
        "MKL_NUM_THREADS": str(parameters.threads),
        "PYTHONUNBUFFERED": "1",
    }
    if not parameters.cuda:
        path.append(str(HERE / "standins"))
        added |= {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
        disabled = unused_architectures(parameters.model_path)
        if disabled:
            added["SGLANG_DISABLED_MODEL_ARCHS"] = ",".join(disabled)
    added["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [base.get("PYTHONPATH")])])
    return {**base, **added}


def unused_architectures(model_path: Path) -> list[str]:
    """SGLang's model modules that this model does not need: importing all of them costs a second and 100 MB."""
    import importlib.util

    spec = importlib.util.find_spec("sglang")
    config = model_path / "config.json"
    if spec is None or spec.origin is None or not config.is_file():
        return []
    names = {file.stem for file in (Path(spec.origin).parent / "srt" / "models").glob("*.py")}
    wanted = json.loads(config.read_text()).get("model_type", "")
    return sorted(names - {wanted, "__init__"}) if wanted in names else []


def _linker_config(linker: LinkerParameters) -> str:
    return json.dumps(
        {
            "linker": "GyreLinker",
            "linker_module_path": "workers.cell.rollout.linker.plugin",
            "linker_extra_config": {
                "port": linker.port,
                "token": linker.token,
                "pool_tokens": linker.pool_tokens,
                "boot_epoch": linker.boot_epoch,
                "host": linker.host,
                "protocol": linker.protocol,
                "max_hold_seconds": linker.max_hold_seconds,
            },
        }
    )

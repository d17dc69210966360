"""The paced engines every contestant stands before."""

import sys
from dataclasses import dataclass
from pathlib import Path

from infra.ports import free_ports
from workers.bench.proxy.caller import Target
from workers.bench.proxy.child import Child
from workers.supervisor.run_folder import CHECKOUT

ENGINE = ("-m", "workers.cell.rollout.paced")
CHAT = "/v1/chat/completions"
MODEL = CHECKOUT / "infra" / "demo" / "policy"
CONTEXT_TOKENS = 8192
_NEVER_ENDS = 10**9
VERSION = 1


@dataclass(frozen=True)
class PacedOne:
    """A running paced engine. `slots`: requests it runs at once."""

    child: Child
    port: int
    slots: int
    kv_tokens: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def chat(self) -> Target:
        return Target("127.0.0.1", self.port, CHAT, {})


async def start_engine(
    folder: Path, name: str, *, core: int, tokens_per_second: float, slots: int, admin_key: str
) -> PacedOne:
    """An engine whose answers always run to their budget."""
    port, kv_tokens = free_ports(1)[0], slots * CONTEXT_TOKENS
    flags = {
        "port": port,
        "model": MODEL,
        "version": VERSION,
        "tokens-per-second": tokens_per_second,
        "prefill-tokens-per-second": 1e9,
        "slots": slots,
        "kv-tokens": kv_tokens,
        "context": CONTEXT_TOKENS,
        "mean-output-tokens": _NEVER_ENDS,
        "admin-api-key": admin_key,
    }
    argv = [sys.executable, *ENGINE]
    argv += [part for flag, value in flags.items() for part in (f"--{flag}", str(value))]
    argv.append("--incremental")  # as the real engine is launched (workers/cell/rollout/command.py)
    child = Child(argv, core=core, log=folder / f"{name}.log", cwd=CHECKOUT)
    try:
        await child.answers(f"http://127.0.0.1:{port}/health")
    except BaseException:
        child.stop()
        raise
    return PacedOne(child, port, slots, kv_tokens)

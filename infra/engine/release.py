"""Whether an engine really holds nothing any more. Never concluded from a 200."""

from dataclasses import dataclass
from typing import Any

from workflows.messages.kv import LinkerStats


@dataclass(frozen=True, slots=True)
class EngineLoads:
    """Requests and KV tokens in use, summed over the engine's ranks. `used_tokens` leaves cached, unused KV out."""

    running: int
    waiting: int
    used_tokens: int
    max_tokens: int

    @classmethod
    def of_answer(cls, answer: dict[str, Any]) -> "EngineLoads":
        """From ``GET /v1/loads``. Paused and retracted requests count as waiting."""
        loads = answer["loads"]
        return cls(
            running=sum(load["num_running_reqs"] for load in loads),
            waiting=sum(_waiting(load) for load in loads),
            used_tokens=sum(load["num_used_tokens"] for load in loads),
            max_tokens=sum(load["max_total_num_tokens"] for load in loads),
        )


def _waiting(load: dict[str, Any]) -> int:
    return max(load["num_waiting_reqs"], sum((load.get("queues") or {}).values()))


def released(loads: EngineLoads, linker: LinkerStats | None) -> bool:
    """Ask after a flush: nothing runs or waits, no KV token is in use, nobody holds pages. Without a linker: None."""
    idle = loads.running == 0 and loads.waiting == 0 and loads.used_tokens == 0
    return idle and (linker is None or (linker.pinned_pages == 0 and linker.leases == 0))


def holding(loads: EngineLoads, linker: LinkerStats | None) -> str:
    """What is still held, in words; empty when `released`."""
    found = {
        "running requests": loads.running,
        "waiting requests": loads.waiting,
        "used KV tokens": loads.used_tokens,
        "pinned pages": linker.pinned_pages if linker else 0,
        "KV leases": linker.leases if linker else 0,
    }
    return ", ".join(f"{count} {name}" for name, count in found.items() if count)

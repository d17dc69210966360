"""What OpenGyre hooks into SGLang, through SGLang's own plugin entry point and hook registry. Runs in the engine.

Three hooks, checked by the tests against the real server:
- the linker learns which session's pages form which chain. A linker is only told about pages that are not stored yet,
  so without this a session would lack the prefix it shares with others;
- on CPU, the engine's processes are forked, not spawned;
- on CPU, `sampling_seed` is honoured. SGLang honours it only in its deterministic mode, which refuses the CPU attention
  backend.
"""

import secrets
import sys
from typing import Any


def register() -> None:
    """Entry point of ``sglang.srt.plugins``; called once in every process of the engine."""
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.insert", note_chain, HookType.BEFORE
    )
    if not torch.cuda.is_available():
        # SGLang's debugging tools look for the training library, which would cost half a second and 50 MB here.
        sys.modules.setdefault("megatron", None)  # pyright: ignore[reportArgumentType]
        HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", fork_processes, HookType.AFTER)
        HookRegistry.register(
            "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch",
            seed_every_row,
            HookType.AFTER,
        )


def fork_processes(_result: None, *_: Any) -> None:
    """After the start-up settings: fork the engine's other processes instead of spawning them.

    Spawned ones import everything again: two thirds of the time to start and of the memory. Without CUDA and before any
    model is loaded there is nothing in the process that a fork could break.
    """
    import multiprocessing

    multiprocessing.set_start_method("fork", force=True)


def note_chain(cache: Any, params: Any) -> None:
    """Before an insert: tell the linker the whole chain of page keys that the request's session now stands on."""
    linker: Any = getattr(cache.linker, "cache_linker", None)
    if not hasattr(linker, "note_chain") or not params.session_id or len(params.key) == 0:
        return
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    keys = get_storage_hash_str(params.key, None, page_size=cache.page_size)
    linker.note_chain(params.session_id, [keys] if isinstance(keys, str) else list(keys))


def seed_every_row(info: Any, _cls: type, batch: Any, *_: Any) -> Any:
    """After a batch's sampling state is built: give every row a seed, a random one where the caller gave none.

    Every row, because SGLang joins two batches' seeds only if both have them.
    """
    import torch

    for request in batch.reqs:
        if request.sampling_params.sampling_seed is None:
            request.sampling_params.sampling_seed = secrets.randbits(63)
    seeds = [request.sampling_params.sampling_seed for request in batch.reqs]
    info.sampling_seed = torch.tensor(seeds, dtype=torch.int64, device=batch.device)
    return info

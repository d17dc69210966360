"""What OpenGyre hooks into SGLang, through SGLang's own plugin entry point and hook registry. Runs in the engine.

Two hooks, both checked by the tests against the real server:
- the linker learns which session's pages form which chain. A linker is only told about pages that are not stored yet,
  so without this a session would lack the prefix it shares with others;
- on CPU, `sampling_seed` is honoured. SGLang honours it only in its deterministic mode, which refuses the CPU attention
  backend.
"""

import secrets
from typing import Any


def register() -> None:
    """Entry point of ``sglang.srt.plugins``; called once in every process of the engine."""
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.insert", note_chain, HookType.BEFORE
    )
    if not torch.cuda.is_available():
        HookRegistry.register(
            "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch",
            seed_every_row,
            HookType.AFTER,
        )


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

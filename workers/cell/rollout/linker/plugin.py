"""The linker as SGLang sees it: an out-of-tree unified-cache linker, made in the scheduler process of each engine.

SGLang calls it from its scheduler loop only. Every page that enters SGLang's tree is written through to the pool (its
only write trigger, see docs/decisions/0003-kv-linker.md); a prompt's pages missing on the device are looked up here and
loaded back. Copies are synchronous: on CPU they are memory copies of kilobytes, on a GPU they wait for the streams that
write or read the device pool. One rank per engine; layouts are those of plain multi-head and grouped-query attention.
"""

from collections import deque
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker

from infra.transfer import TransferEndpoint
from workers.cell.rollout.linker.control import ControlServer
from workers.cell.rollout.linker.store import KvStore
from workflows.messages.errors import InvalidInput


class GyreLinker(UnifiedCacheLinker):
    """`extra_config` is what `command.LinkerParameters` holds."""

    layer_done_counter: LayerWiseLoadCounter

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: Any,
        extra_config: dict[str, Any] | None = None,
        forward_stream: Any = None,
    ) -> None:
        config = extra_config or {}
        if server_args.tp_size != 1 or server_args.pp_size != 1 or server_args.dp_size != 1:
            raise InvalidInput("the KV linker serves engines of one rank", field="engine.ranks")
        cache = params.token_to_kv_pool_allocator.get_kvcache()
        if not hasattr(cache, "k_buffer"):
            raise InvalidInput(f"{type(cache).__name__} has no plain key and value buffers", field="engine.model")
        self.forward_stream = forward_stream if torch.cuda.is_available() else None
        self._buffers: list[torch.Tensor] = [*cache.k_buffer, *cache.v_buffer]
        self._page_tokens: int = params.page_size
        self.pools = {PoolName.KV: self._buffers}
        self.layer_done_counter = LayerWiseLoadCounter(len(cache.k_buffer))
        self._waiting: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._completed: deque[bool] = deque()
        self._row_elements = [buffer[0].numel() * self._page_tokens for buffer in self._buffers]
        page_bytes = sum(self._row_elements) * self._buffers[0].element_size()
        self.store = KvStore(
            pages=max(1, config["pool_tokens"] // self._page_tokens),
            page_bytes=page_bytes,
            page_tokens=self._page_tokens,
            geometry=_geometry(self._buffers, self._page_tokens),
            endpoint=TransferEndpoint(config["host"], config["protocol"]),
            boot_epoch=config["boot_epoch"],
            max_hold_seconds=config["max_hold_seconds"],
        )
        self._control = ControlServer(self.store, config["port"], config["token"])
        self._control.start()

    def note_chain(self, session_id: str, keys: list[str]) -> None:
        """From our hook in `engine_plugin`."""
        self.store.note_chain(session_id, keys)

    def lookup(self, rid: str, transfers: list[Any]) -> list[int]:
        return list(range(1, self.store.prefix(_kv(transfers).keys) + 1))

    def load(self, rid: str, transfers: list[Any]) -> bool:
        """Takes the bytes now: a page may be evicted before the batch starts."""
        transfer = _kv(transfers)
        rows = self.store.rows(transfer.keys)
        if rows is None:
            return False
        self._waiting[rid] = (rows, transfer.device_indices)
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        return self._waiting.pop(rid, None) is not None

    def start_layer_wise_loading(self) -> int:
        if not self._waiting:
            return -1
        index = self.layer_done_counter.update_producer()
        waiting, self._waiting = self._waiting, {}
        try:
            for rows, slots in waiting.values():
                self._write_device(rows, slots)
            self._synchronise()
        except RuntimeError as error:
            self.layer_done_counter.fail(index, error)
            return index
        for layer in range(self.layer_done_counter.num_layers):
            self.layer_done_counter.complete(index, layer)
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return self.layer_done_counter.finish(counter_index)

    def offload(self, transfers: list[Any], session_id: str | None = None) -> bool:
        transfer = _kv(transfers)
        self._synchronise()
        if not self.store.put(transfer.keys, self._read_device(transfer.device_indices)):
            return False
        self._completed.append(True)
        return True

    def num_completed_offloads(self) -> int:
        return len(self._completed)

    def pop_completed_offload(self) -> bool:
        return self._completed.popleft()

    def reset(self) -> None:
        self._waiting.clear()
        self._completed.clear()
        self.layer_done_counter.reset()
        self.store.drop_all()

    def close(self) -> None:
        self._control.close()
        self.store.close()

    def _read_device(self, slots: torch.Tensor) -> torch.Tensor:
        """Pages at `slots` ([pages * page_tokens]) as uint8 [pages, page_bytes]: keys of all layers, then values."""
        pages = slots.numel() // self._page_tokens
        parts = [buffer[slots].reshape(pages, -1).to("cpu") for buffer in self._buffers]
        return torch.cat(parts, dim=1).contiguous().view(torch.uint8)

    def _write_device(self, rows: torch.Tensor, slots: torch.Tensor) -> None:
        parts = rows.view(self._buffers[0].dtype).split(self._row_elements, dim=1)
        for buffer, part in zip(self._buffers, parts, strict=True):
            buffer[slots] = part.reshape(-1, *buffer.shape[1:]).to(buffer.device)

    def _synchronise(self) -> None:
        """On a GPU: wait for whoever writes the pages to be read, or for the copies just issued."""
        if self.forward_stream is not None:
            torch.cuda.current_stream().synchronize()
            self.forward_stream.synchronize()


def _kv(transfers: list[Any]) -> Any:
    return next(transfer for transfer in transfers if transfer.name == PoolName.KV)


def _geometry(buffers: list[torch.Tensor], page_tokens: int) -> str:
    shapes = sorted({"x".join(str(size) for size in buffer.shape[1:]) for buffer in buffers})
    return f"{len(buffers)}x{page_tokens}x{'+'.join(shapes)}:{str(buffers[0].dtype).removeprefix('torch.')}"

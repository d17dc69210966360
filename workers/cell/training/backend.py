"""What Megatron-core needs to run, with or without CUDA: process groups, and shims that are active only without CUDA.

Megatron asks every model for its process groups. Each process here is a tensor, context, expert and data parallel
group of its own; stages of a pipeline talk over two groups of their own, one for each direction. With one stage
everything is made over an in-process store, so there is no port.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core.process_groups_config import ProcessGroupCollection
from torch.distributed import HashStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from workers.cell.training.pipeline.pulse import BUSY_SECONDS

_GROUPS = ("tp", "cp", "pp", "embd", "pos_embd", "dp", "dp_cp", "ep", "tp_cp", "mp")
_EXPERT_GROUPS = ("expt_tp", "tp_ep", "tp_ep_pp", "expt_dp", "tp_dp_cp")
_INTERFACE = "GLOO_SOCKET_IFNAME"
_alone: list[dist.ProcessGroup] = []
"""The group of this process alone, once it has joined others."""


def device() -> torch.device:
    """Where this actor computes."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def single_process_groups() -> ProcessGroupCollection:
    """Every group Megatron asks for, all of this one process. Idempotent within the process."""
    if not dist.is_initialized():
        dist.init_process_group(_backend(), store=HashStore(), rank=0, world_size=1)
    alone = _alone[0] if _alone else dist.group.WORLD
    return ProcessGroupCollection(**dict.fromkeys(_GROUPS + _EXPERT_GROUPS, alone))


@dataclass(frozen=True)
class StageGroups:
    """The groups over which stages pass hidden states on, and their gradients back."""

    forward: dist.ProcessGroup
    backward: dist.ProcessGroup

    def leave(self) -> None:
        """Tear all groups of this process down."""
        _alone.clear()
        dist.destroy_process_group()


def host_store(stages: int, timeout_seconds: float) -> TCPStore:
    """The meeting point of a cell's stages, on a free port of this host's loopback."""
    listening = socket.create_server(("127.0.0.1", 0))  # a store that opens its own listens on every address
    port = listening.getsockname()[1]
    return TCPStore(
        "127.0.0.1",
        port,
        stages,
        is_master=True,
        timeout=timedelta(seconds=timeout_seconds),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def is_device_busy(where: torch.device) -> bool:
    """Whether an accelerator still has work that was given to it; False for the processor, and for a broken one."""
    if where.type != "cuda":
        return False
    try:
        return not torch.cuda.default_stream(where).query()
    except RuntimeError:
        return False


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """Gloo groups made meanwhile listen on loopback alone, whatever interface this process uses for others."""
    kept = os.environ.get(_INTERFACE)
    os.environ[_INTERFACE] = "lo"
    try:
        yield
    finally:
        del os.environ[_INTERFACE]
        if kept is not None:
            os.environ[_INTERFACE] = kept


def join_stages(port: int, stage: int, stages: int, *, store: TCPStore | None = None) -> StageGroups:
    """Meet the cell's other stages; call before any model is built. Raises RuntimeError if they do not come."""
    if not torch.cuda.is_available():
        install_shims()
    else:
        torch.cuda.set_device(stage % torch.cuda.device_count())
    store = store or TCPStore("127.0.0.1", port, stages, is_master=False, timeout=timedelta(seconds=300))
    timeout = timedelta(seconds=BUSY_SECONDS)
    with on_loopback():
        dist.init_process_group(_backend(), store=store, rank=stage, world_size=stages, timeout=timeout)
        groups = [dist.new_group([one]) for one in range(stages)]  # every process makes every group, in the same order
        _alone.append(groups[stage])  # pyright: ignore[reportArgumentType]
        everyone = list(range(stages))
        return StageGroups(dist.new_group(everyone), dist.new_group(everyone))  # pyright: ignore[reportArgumentType]


def install_shims() -> None:
    """On a CPU, Megatron's point-to-point communicator asks CUDA for the current device to receive into."""
    torch.cuda.current_device = lambda: torch.device("cpu")  # pyright: ignore[reportAttributeAccessIssue]


def _backend() -> str:
    return "nccl" if torch.cuda.is_available() else "gloo"

"""What Megatron-core needs to run in one process, with or without CUDA.

With PP = TP = DP = 1 and our own loss nothing has to be patched on a CPU: Megatron only asks for process groups. They
are made over an in-process store, so there is no port. Shims that a CPU will need for more than one pipeline stage
belong here and must be active only without CUDA.
"""

import torch
import torch.distributed as dist
from megatron.core.process_groups_config import ProcessGroupCollection
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

_GROUPS = ("tp", "cp", "pp", "embd", "pos_embd", "dp", "dp_cp", "ep", "tp_cp", "mp")
_EXPERT_GROUPS = ("expt_tp", "tp_ep", "tp_ep_pp", "expt_dp", "tp_dp_cp")


def device() -> torch.device:
    """Where this actor computes."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def single_process_groups() -> ProcessGroupCollection:
    """Every group Megatron asks for, all of this one process. Idempotent within the process."""
    if not dist.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    world = dist.group.WORLD
    return ProcessGroupCollection(**dict.fromkeys(_GROUPS + _EXPERT_GROUPS, world))

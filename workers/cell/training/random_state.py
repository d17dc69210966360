"""Every random generator that a training process might draw from, as tensors.

A step draws from none (no dropout, every seed explicit); they are bound into the checkpoint so that this stays true of
what a restarted process does next, whatever is added.
"""

import random
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from workflows.messages.errors import CheckpointUnusable


def seed(value: int) -> None:
    """Start them all from `value`, so that two runs that begin alike go on alike."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def capture() -> dict[str, Tensor]:
    """``torch`` and ``cuda/<device>`` uint8; ``python`` int64 [625]; ``numpy`` int64 [626]; Gaussian left-overs."""
    _, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = cast(tuple[str, Any, int, int, float], np.random.get_state(legacy=True))
    out = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "python/gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.tensor([*keys.tolist(), position, has_gauss], dtype=torch.int64),
        "numpy/gauss": torch.tensor([cached], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        out |= {f"cuda/{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return out


def restore(state: Mapping[str, Tensor]) -> None:
    """Put back what `capture` returned; devices that this process does not have are passed over.

    Raises CheckpointUnusable if a generator is missing.
    """
    try:
        python = (3, tuple(state["python"].tolist()), next(iter(state["python/gauss"].tolist()), None))
        *keys, position, has_gauss = state["numpy"].tolist()
        numpy = ("MT19937", np.array(keys, np.uint32), position, has_gauss, state["numpy/gauss"].item())
        torch.set_rng_state(state["torch"])
    except KeyError as missing:
        raise CheckpointUnusable(f"the random state has no {missing}") from missing
    random.setstate(python)
    np.random.set_state(numpy)
    for index in range(torch.cuda.device_count()):
        if (device := state.get(f"cuda/{index}")) is not None:
            torch.cuda.set_rng_state(device, index)

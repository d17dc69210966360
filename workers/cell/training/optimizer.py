"""The core's optimizer: one `torch.optim.AdamW`, fp32, its state kept and saved under Hugging Face names.

Megatron's own optimizers fix their shards at build time and want CUDA; see docs/backends.md. Weight decay applies to
matrices, not to norms.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from infra.weights.names import from_hf, to_hf
from workers.cell.training.whole import WholePolicy
from workflows.messages.errors import CheckpointUnusable

_MOMENTS = ("exp_avg", "exp_avg_sq")


def clip_coefficient(norm: float, max_norm: float) -> float:
    """What a gradient of global norm `norm` is multiplied with so that its norm is at most `max_norm`."""
    return min(1.0, max_norm / (norm + 1e-6))


@dataclass(frozen=True)
class AdamSettings:
    """Of one update; they may change from one to the next."""

    learning_rate: float
    betas: tuple[float, float]
    weight_decay: float


class CoreOptimizer:
    """Lives on the core as long as its actor. `steps` counts updates."""

    def __init__(self, model: WholePolicy) -> None:
        self._model = model
        self._named = dict(model.named_parameters())
        self.reset()

    def reset(self) -> None:
        """Fresh state, as at the start of a run."""
        self.steps = 0
        matrices = [parameter for parameter in self._named.values() if parameter.dim() > 1]
        vectors = [parameter for parameter in self._named.values() if parameter.dim() <= 1]
        self._adam = torch.optim.AdamW(
            [{"params": matrices, "decays": True}, {"params": vectors, "decays": False}], foreach=False
        )

    def step(self, gradients: Mapping[str, Tensor], settings: AdamSettings) -> None:
        """One update from Megatron-named `gradients` (already normalised and clipped)."""
        for group in self._adam.param_groups:
            group["lr"], group["betas"] = settings.learning_rate, settings.betas
            group["weight_decay"] = settings.weight_decay if group["decays"] else 0.0
        for name, parameter in self._named.items():
            parameter.grad = gradients[name]
        self._adam.step()
        for parameter in self._named.values():
            parameter.grad = None
        self.steps += 1

    def state(self) -> dict[str, Tensor]:
        """``exp_avg/<hf name>`` and ``exp_avg_sq/<hf name>``, fp32, shaped as weights; empty before the first step."""
        if self.steps == 0:
            return {}
        out: dict[str, Tensor] = {}
        for moment in _MOMENTS:
            named = {name: self._adam.state[parameter][moment] for name, parameter in self._named.items()}
            out |= {f"{moment}/{name}": tensor for name, tensor in to_hf(self._model.arch, named).items()}
        return out

    def load(self, steps: int, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned after `steps` updates. Raises CheckpointUnusable if it is not complete."""
        self.reset()
        if steps == 0:
            return
        for moment in _MOMENTS:
            prefix = f"{moment}/"
            tensors = {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}
            if not tensors:
                raise CheckpointUnusable(f"optimizer state has no {moment}")
            for name, tensor in from_hf(self._model.arch, tensors).items():
                entry = self._adam.state[self._named[name]]
                entry["step"] = torch.tensor(float(steps))
                entry[moment] = tensor.clone().to(self._named[name].device)
        self.steps = steps

"""The reference policy that a batch's KL term pulls towards: a second, frozen copy of the model.

It is loaded when the first micro-step names it and stays until training resources are released; at most one is held.
Cost: one more copy of the parameters in every training cell, and one more forward pass a micro-step.
"""

from pathlib import Path

import torch
from torch import Tensor

from infra.micro_steps import PackedMicroStep
from infra.weights.architecture import Architecture
from infra.weights.checksum import weights_checksum
from infra.weights.folder import load_weights
from workers.cell.training.loss import LossSettings
from workers.cell.training.model import PolicyModel, build_model
from workers.cell.training.stream import target_logprobs
from workflows.messages.errors import ChecksumMismatch, InvalidInput
from workflows.messages.loss import BASE


class ReferencePolicies:
    """Log-probs under whatever reference the settings name; `base` is the run's base model folder."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._held: tuple[Path, str, PolicyModel] | None = None

    @property
    def bytes(self) -> int:
        """Of the parameters held."""
        return 0 if self._held is None else sum(one.nbytes for one in self._held[2].parameters())

    def __call__(self, step: PackedMicroStep, settings: LossSettings) -> Tensor | None:
        """fp32 [r] without gradient, in the order of the targets; None if the settings name no reference.

        Raises InvalidInput for a folder that is no model or has another vocabulary, ChecksumMismatch if its weights are
        not those the settings promise.
        """
        if settings.reference is None:
            return None
        model, checksum = self._model(self._base if settings.reference == BASE else Path(settings.reference))
        if settings.reference_checksum not in (None, checksum):
            raise ChecksumMismatch(f"the reference has checksum {checksum}, {settings.reference_checksum} was promised")
        with torch.no_grad():
            return target_logprobs(model, step).logprobs

    def close(self) -> None:
        """Free it; the next micro-step that needs it loads it again."""
        self._held = None

    def _model(self, folder: Path) -> tuple[PolicyModel, str]:
        if self._held is None or self._held[0] != folder:
            self._held = None  # before the next one is loaded: memory for one is all that was promised
            arch, wanted = Architecture.from_folder(folder), Architecture.from_folder(self._base)
            if arch.vocab_size != wanted.vocab_size:
                raise InvalidInput(f"{folder} has {arch.vocab_size} tokens, not {wanted.vocab_size}", field="reference")
            model = build_model(arch).requires_grad_(False)
            model.load_hf(load_weights(folder))
            self._held = (folder, weights_checksum(model.hf_weights()), model)
        return self._held[2], self._held[1]

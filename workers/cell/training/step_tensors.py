"""A micro-step as the tensors a model takes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from infra.micro_steps import PackedMicroStep
from workers.cell.training.attention import AttentionPlan
from workflows.messages.errors import InvalidInput


@dataclass(frozen=True)
class StepTensors:
    """`ids` and `positions` int64 [s]; `plan` says who attends to whom; `rows` int64 [r]: the place that predicts each
    target, in the order of the targets."""

    ids: Tensor
    positions: Tensor
    plan: AttentionPlan
    rows: Tensor

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, step: PackedMicroStep, vocabulary: int, device: torch.device) -> "StepTensors":
        """Raises InvalidInput for a token id outside the vocabulary."""
        if step.tokens and int(step.ids.max()) >= vocabulary:
            raise InvalidInput(f"holds token id {int(step.ids.max())}", field="ids")
        before = torch.from_numpy(step.predecessors())[torch.from_numpy(step.targets)]
        return cls(
            ids=torch.from_numpy(step.ids).to(device, torch.int64),
            positions=torch.from_numpy(step.positions).to(device, torch.int64),
            plan=AttentionPlan.of_segments(step.segment_offsets.tolist(), step.segment_parents.tolist(), device),
            rows=before.to(device, torch.int64),
        )

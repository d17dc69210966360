"""What the loss of a batch is made of: part of a burst's training settings and of every micro-step's request."""

from pydantic import Field, ValidationInfo, field_validator

from workflows.messages.base import Written

BASE = "base"
"""The reference policy that is the model the run started from."""


class LossSettings(Written):
    """The terms of the loss; `workers.cell.training.loss` has the formulas."""

    clip_low: float = Field(default=0.2, gt=0, lt=1, description="the ratio counts down to 1 - clip_low")
    clip_high: float = Field(default=0.28, gt=0, description="and up to 1 + clip_high")
    truncate_ratio: float | None = Field(
        default=None, ge=1, description="importance weights are held at or below it; null: never"
    )
    kl_weight: float = Field(default=0.0, ge=0, description="beta: weight of the KL to the reference policy")
    reference: str | None = Field(
        default=None,
        min_length=1,
        validate_default=True,
        description="`base`, or the absolute path of a model folder; with kl_weight 0 its KL is only measured. Costs "
        "every training cell one more copy of the weights and one more forward pass",
    )
    reference_checksum: str | None = Field(
        default=None, pattern=r"^[0-9a-f]{64}$", description="weights checksum of the reference; any other is refused"
    )
    log_entropy: bool = Field(default=True, description="measure the policy's entropy at the targets")

    @field_validator("reference")
    @classmethod
    def _can_be_found(cls, reference: str | None, info: ValidationInfo) -> str | None:
        if reference is None and info.data.get("kl_weight"):
            raise ValueError("kl_weight is above 0, so the policy it pulls towards must be named")
        if reference is not None and reference != BASE and not reference.startswith("/"):
            raise ValueError(f"must be `{BASE}` or the absolute path of a model folder")
        return reference

    @field_validator("reference_checksum")
    @classmethod
    def _belongs_to_a_reference(cls, checksum: str | None, info: ValidationInfo) -> str | None:
        if checksum is not None and info.data.get("reference") is None:
            raise ValueError("there is no reference it could belong to")
        return checksum

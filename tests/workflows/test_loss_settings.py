"""Loss settings are checked where a person writes them, with the field named."""

import pytest
from pydantic import ValidationError

from workflows.messages.burst import Training
from workflows.messages.loss import LossSettings


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"clip_low": 1.0}, "clip_low"),
        ({"clip_high": 0.0}, "clip_high"),
        ({"truncate_ratio": 0.5}, "truncate_ratio"),  # would leave on-policy tokens without a gradient
        ({"kl_weight": -0.1, "reference": "base"}, "kl_weight"),
        ({"kl_weight": 0.1}, "reference"),
        ({"reference": "v3"}, "reference"),
        ({"reference": ""}, "reference"),
        ({"reference_checksum": "0" * 64}, "reference_checksum"),
        ({"reference": "base", "reference_checksum": "abc"}, "reference_checksum"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Training.model_validate(wrong)
    assert [error["loc"] for error in caught.value.errors()] == [(field,)]


@pytest.mark.parametrize("reference", ["base", "/models/v3"])
def test_a_burst_hands_its_loss_on_whole(reference: str) -> None:
    training = Training(
        kl_weight=0.02, reference=reference, reference_checksum="a" * 64, truncate_ratio=2, clip_low=0.1
    )
    assert training.loss.model_dump() == {name: getattr(training, name) for name in LossSettings.model_fields}


def test_by_default_there_is_no_reference() -> None:
    assert (Training().loss.reference, Training().loss.kl_weight) == (None, 0.0)

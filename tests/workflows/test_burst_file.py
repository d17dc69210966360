"""The files that people write: every number has bounds, and a wrong one is named, whatever is wrong with it."""

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from workflows.messages.burst import MOST_EXECUTIONS, MOST_GROUPS, MOST_SETTINGS, BurstSpec, CampaignSpec

BURST = {"run": "r", "name": "b", "tasks": "t"}
NUMBERS = [0, -1, 1, 0.5, 2, 10**3, 10**6, 10**9, 10**12, 2**63 - 1, 2**63, 10**30, 1e300, -1e300]
NO_NUMBERS = [math.inf, -math.inf, math.nan, "x", [], {}, [1], {"a": 1}, "1e999", b"x"]


def leaves(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every field of a file, by its way."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, (*path, name))
        yield (*path, name)


def with_value(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A burst with one field changed."""
    whole: dict[str, Any] = dict(BURST)
    at = whole
    for name in path[:-1]:
        at = at.setdefault(name, {})
    at[path[-1]] = value
    return whole


def numbers_in(value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            for _, number in numbers_in(getattr(value, name)):
                yield name, number
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield "", value


@pytest.mark.parametrize("path", list(leaves(BurstSpec)), ids=".".join)
def test_a_value_is_harmless_or_named(path):
    for value in [*NUMBERS, *NO_NUMBERS, None, True]:
        named = _refusal(with_value(path, value))
        if named is None:
            _check_harmless(BurstSpec.model_validate(with_value(path, value)))
        else:
            assert path[-1] in named or path[0] in named, (value, named)


def _refusal(burst: dict[str, Any]) -> str | None:
    """What the first error says and where; None for a burst that is taken."""
    try:
        BurstSpec.model_validate(burst)
    except ValidationError as error:
        first = error.errors()[0]
        return ".".join(str(part) for part in first["loc"]) + first["msg"]
    return None


def _check_harmless(spec: BurstSpec) -> None:
    for name, number in numbers_in(spec):
        assert math.isfinite(number)
        assert abs(number) < 2**63, "no database takes it"
        if name.endswith("_seconds"):
            assert timedelta(seconds=number) <= timedelta(days=6)
    assert spec.quota <= MOST_GROUPS
    assert spec.quota * spec.executions_per_group <= MOST_EXECUTIONS


@pytest.mark.parametrize("path", list(leaves(BurstSpec)), ids=".".join)
def test_a_misspelt_field_is_named(path):
    wrong = (*path[:-1], f"{path[-1]}x")
    with pytest.raises(ValidationError) as caught:
        BurstSpec.model_validate(with_value(wrong, 1))
    assert wrong[-1] in str(caught.value)


def test_too_many_at_once_are_refused_by_name():
    for more in ({"groups_per_step": 600}, {"groups_per_step": 100, "executions_per_group": 200}, {"steps": 300}):
        with pytest.raises(
            ValidationError, match="groups_per_step, steps, carry_over, staleness, executions_per_group"
        ):
            BurstSpec(**BURST, **more)
    assert BurstSpec(**BURST, groups_per_step=32, executions_per_group=16, steps=8, carry_over=2).quota == 320


def test_settings_of_a_harness_are_carried_by_every_execution():
    for settings in ({"command": "x" * (MOST_SETTINGS + 1)}, {f"name{n}": n for n in range(3000)}):
        with pytest.raises(ValidationError, match=r"harness\.settings"):
            BurstSpec(**BURST, harness={"settings": settings})


def test_a_campaign_names_the_field_of_its_burst():
    with pytest.raises(ValidationError, match=r"burst\.limits\.wall_seconds"):
        CampaignSpec(run="r", name="c", bursts=2, burst={**BURST, "limits": {"wall_seconds": math.inf}})

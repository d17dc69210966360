"""States that workflows carry over, read by code that did not write them."""

import json
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from workers.control.worker import FAILURES
from workflows.batch import BatchState
from workflows.books import SchedulerState
from workflows.cell import CellState
from workflows.messages.carried import Carried, Upgrade
from workflows.messages.errors import StateUnreadable

STATES: tuple[type[Carried], ...] = (SchedulerState, CellState, BatchState)


def _seconds(state: dict[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in state.items() if key != "minutes"}, "seconds": 60 * state["minutes"]}


def _named(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "name": f"waits {state['seconds']} s"}


class Oldest(Carried):
    minutes: int


class Newest(Carried):
    """Format 2 counts seconds, format 3 has a name."""

    upgrades: ClassVar[tuple[Upgrade, ...]] = (_seconds, _named)
    format: int = 3
    seconds: int
    name: str
    counts: dict[int, tuple[int, ...]] = {}


def test_what_this_code_writes_it_reads():
    state = Newest(seconds=1, name="a", counts={3: (4, 5)})
    assert state.format == 3
    assert Newest.model_validate_json(state.model_dump_json()) == state


def test_an_older_state_is_upgraded_step_by_step():
    expected = Newest(seconds=120, name="waits 120 s")
    assert Newest.model_validate_json(Oldest(minutes=2).model_dump_json()) == expected
    assert Newest.model_validate_json('{"format": 2, "seconds": 120}') == expected
    assert Newest.model_validate_json('{"minutes": 2}') == expected  # from before there was a format


@pytest.mark.parametrize("number", [4, 0, -1, "3", None, True, 3.0])
def test_a_format_that_is_not_known_is_named_with_what_was_expected(number):
    raw = json.dumps({"format": number, "seconds": 1, "name": "a"})
    with pytest.raises(StateUnreadable, match=rf"^Newest\.format: {number!r}, but this code knows format 1 to 3\. "):
        Newest.model_validate_json(raw)


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        ({"name": None}, "name", "Input should be a valid string"),
        ({"voice": "a"}, "voice", "Extra inputs are not permitted"),
        ({"seconds": "soon"}, "seconds", "Input should be a valid integer"),
        ({"counts": {"3": ["x"]}}, r"counts\.3\.0", "Input should be a valid integer"),
    ],
)
def test_a_field_of_other_code_is_named(change, field, expected):
    raw = json.dumps({"format": 3, "seconds": 1, "name": "a", **change})
    with pytest.raises(
        StateUnreadable, match=rf"^Newest\.{field}: {expected}.*in a state of format 3\. Nothing is lost"
    ):
        Newest.model_validate_json(raw)


def test_an_older_state_that_cannot_be_upgraded_is_refused():
    with pytest.raises(StateUnreadable, match=r"^Newest: no upgrade from format 2: KeyError\('seconds'\)\. Nothing"):
        Newest.model_validate_json('{"format": 2}')


def test_a_mistake_in_code_is_no_state_of_other_code():
    with pytest.raises(ValidationError):
        Newest(seconds="soon", name="a")  # type: ignore[arg-type]


def test_a_format_without_its_upgrade_cannot_be_defined():
    with pytest.raises(TypeError, match="format 2 needs 1 upgrades"):

        class Forgotten(Carried):
            format: int = 2


def test_no_unreadable_state_fails_a_workflow():
    """It would be lost: whatever fails a workflow must not stand above this exception."""
    assert not issubclass(StateUnreadable, (ValueError, AssertionError, *FAILURES))
    for state in STATES:
        with pytest.raises(StateUnreadable, match=rf"^{state.__name__}\.format: 99, but this code knows format"):
            state.model_validate_json('{"format": 99, "something": 1}')

"""What `gyre bench pipeline` makes of its clocks."""

from collections import deque

import pytest

from workers.bench.pipeline.rounds import WAYS, idle_in_flow, summary, utilisation
from workers.cell.training.pipeline.schedule import Usage


def usage(busy: float, *passes: tuple[str, float, float]) -> Usage:
    return Usage(busy_seconds=busy, passes=deque(passes))


FIRST = usage(3.0, ("F0", 0.0, 1.0), ("F1", 1.0, 2.0), ("B0", 2.5, 3.0), ("F2", 3.0, 4.0), ("B1", 9.0, 10.0))


def test_utilisation_is_computing_over_stages_times_time():
    assert utilisation((4.0, [usage(3.0), usage(1.0)]), 2) == 0.5


def test_idle_in_flow_leaves_fill_and_drain_out():
    assert idle_in_flow(FIRST) == pytest.approx(0.5 / 4.0)


def test_rounds_are_compared_in_pairs_with_the_faster_of_megatrons_ways():
    def rounds(*seconds: float):
        return [(one, [FIRST, FIRST]) for one in seconds]

    found = summary(dict(zip(WAYS, (rounds(2, 3, 10), rounds(4, 4, 4), rounds(2, 2, 9)), strict=True)), 2)
    assert found["megatron"] == "megatron_separate"
    assert found["relative_seconds_of_rounds"] == [1.0, 1.5, 1.111]
    assert found["relative_seconds"] == 1.111
    assert found["relative_utilisation"] == 0.9
    assert found["open_ended"]["seconds"] == 3


@pytest.mark.parametrize(
    ("seconds", "busy", "met"), [(4.0, 3.0, True), (4.4, 3.3, False), (4.0, 2.7, False), (3.6, 2.7, True)]
)
def test_the_bar_is_utilisation_and_time(seconds: float, busy: float, met: bool):
    """A pipeline that computes longer is as busy as Megatron's, and slower."""
    theirs = [(4.0, [usage(3.0, *FIRST.passes)])]
    ours = [(seconds, [usage(busy, *FIRST.passes)])]
    assert summary(dict(zip(WAYS, (ours, theirs, theirs), strict=True)), 1)["met"] is met

"""How busy the machine was while a policy ran."""

import pytest

from workers.bench.schedulers.machine import Clock

BEFORE = "cpu  100 50 30 800 20 0 0 0 0 0\ncpu0 1 1 1 1\n"


@pytest.mark.parametrize(
    ("after", "share"),
    [
        ("cpu  140 50 40 840 30 0 0 0 0 0\n", 0.5),
        ("cpu  100 130 40 805 25 0 0 0 0 0\n", 0.1),  # what runs nice gives way
        ("cpu  150 50 80 800 20 0 0 0 0 0\n", 1.0),
    ],
)
def test_what_gives_way_does_not_make_the_machine_busy(after: str, share: float) -> None:
    assert Clock.of(after).share_since(Clock.of(BEFORE)) == pytest.approx(share)


def test_this_machine_has_a_clock() -> None:
    assert Clock.now().total > 0

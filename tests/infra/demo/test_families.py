"""Every family: the right way solves, the tempting way does not, and nothing needs sleeping."""

import random

import pytest

from infra.demo.dialogue import run_command
from infra.demo.families import FAMILIES, MOST_REPAIRS, draw
from infra.demo.rewards import solved
from infra.demo.tasks import write_workspace

SEEDS = range(12)


def play(repair, workspace, commands):
    """Run each command, looking before and after as a demonstration does; returns what every look showed."""
    write_workspace(repair, workspace)
    looks = [run_command(repair.look, workspace)]
    for command in commands:
        returncode, _ = run_command(command, workspace)
        assert returncode == 0, command
        looks.append(run_command(repair.look, workspace))
    return looks


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("seed", SEEDS)
def test_the_right_way_solves_it_one_repair_a_turn(tmp_path, family, seed):
    repair = draw(random.Random(seed), family)
    looks = play(repair, tmp_path / "w", repair.right)
    assert len(set(looks)) == len(looks), "every turn shows something new"
    assert solved(repair, tmp_path / "w")


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("seed", SEEDS)
def test_the_tempting_way_fails(tmp_path, family, seed):
    repair = draw(random.Random(seed), family)
    play(repair, tmp_path / "tempting", repair.tempting)
    assert not solved(repair, tmp_path / "tempting")
    assert len(repair.tempting) == len(repair.right)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_doing_nothing_fails(tmp_path, family):
    repair = draw(random.Random(5), family)
    write_workspace(repair, tmp_path)
    assert not solved(repair, tmp_path)


def test_a_seed_is_a_task():
    assert draw(random.Random("x")) == draw(random.Random("x"))
    assert draw(random.Random("x")) != draw(random.Random("y"))


def test_turns_are_heavy_tailed():
    repairs = sorted(draw(random.Random(i), "failing-test").repairs for i in range(3000))
    assert repairs[1500] <= 2
    assert repairs[2850] >= MOST_REPAIRS - 1
    assert repairs[-1] == MOST_REPAIRS

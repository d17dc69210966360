"""The baselines and what all policies share: bounds, splits, the pool, lending, starvation."""

import pytest

from tests.workflows.policy.states import cell, state
from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy import registry, waterlevel
from workflows.policy.bounds import split_of
from workflows.policy.memory import Memory
from workflows.policy.registry import POLICIES
from workflows.policy.safe_mode import SafeMode, after_operator
from workflows.policy.starvation import relief
from workflows.policy.state import BatchView, Bounds, Decision, PolicyState, Reason, Verdict

TRAINING, ROLLOUT, PARKED = CellRole.TRAINING, CellRole.ROLLOUT, CellRole.PARKED
B = 4


def ask(policy: str, seen: PolicyState) -> Decision:
    return registry.decide(policy, seen, Memory())[0]


def four(trains: int, **more: object) -> PolicyState:
    return state(*[cell(index, TRAINING if index < trains else ROLLOUT) for index in range(4)], **more)


# --- async


def test_split_is_brought_about_without_a_look_at_load_or_supply() -> None:
    assert ask("async", four(0, work=99, ready=0, split=2)).movers == (0,)
    assert ask("async", four(1, work=99, ready=0, split=2)).movers == (1,)
    assert ask("async", four(2, work=0, split=2)).reason is Reason.SPLIT


def test_split_is_of_eligible_cells_and_stays_at_the_end_of_a_burst() -> None:
    parked = state(cell(0, TRAINING), cell(1, PARKED), cell(2), cell(3), split=2)
    assert ask("async", parked).movers == (2,)
    assert registry.at_burst_end("async", four(2, split=2), 16) == (0, 1)
    returned = state(cell(0, TRAINING), cell(1), cell(2, TRAINING), cell(3), split=2)
    assert registry.at_burst_end("async", returned, 16) == (0,)


def test_who_trains_beyond_the_split_goes_back_between_two_batches() -> None:
    """It stood in for one that was parked and is back; in mid-batch what it has accumulated would be lost."""
    beyond = {"split": 2, "work": 3}
    assert ask("async", four(4, **beyond)).verdict is Verdict.REFUSE
    back = ask("async", four(4, needed=None, **beyond))
    assert (back.movers, back.direction, back.reason) == ((3, 2), Direction.TO_ROLLOUT, Reason.SPLIT)
    stands_in = state(cell(0, TRAINING), cell(1), cell(2, TRAINING), needed=None, split=2)
    first = ask("async", stands_in)
    assert (first.movers, first.direction) == ((1,), Direction.TO_TRAINING), "create before destroy"
    leads = cell(0, TRAINING, leaving=True, trains=False)
    handing_over = state(
        leads, cell(1, TRAINING), cell(2, TRAINING), cell(3), needed=None, split=2, move_under_way=True
    )
    assert ask("async", handing_over).verdict is Verdict.REFUSE, "a core that leaves need not serve before"


@pytest.mark.parametrize(
    ("split", "bounds", "standalone", "trains"),
    [
        (9, Bounds(), 0, 3),
        (9, Bounds(), 4, 4),
        (2, Bounds(max_training_cells=1), 0, 1),
        (3, Bounds(min_rollout_cells=2), 0, 2),
        (1, Bounds(min_training_cells=2), 0, 2),
    ],
)
def test_split_obeys_the_bounds(split: int, bounds: Bounds, standalone: int, trains: int) -> None:
    assert split_of(four(0, split=split, bounds=bounds, standalone_slots=standalone)) == trains


# --- colocate


def test_pool_switches_as_a_whole_when_nothing_is_out() -> None:
    assert ask("colocate", four(0, work=1, ready=2)).reason is Reason.CAPACITY
    decision = ask("colocate", four(0, work=0, ready=2))
    assert (decision.movers, decision.direction) == ((0, 1, 2, 3), Direction.TO_TRAINING)
    assert registry.at_burst_end("colocate", four(4), 16) == ()


def test_of_a_pool_only_as_many_switch_as_the_bounds_allow() -> None:
    assert ask("colocate", four(0, bounds=Bounds(max_training_cells=2))).movers == (0, 1)
    assert ask("colocate", four(0, bounds=Bounds(min_rollout_cells=1))).movers == (0, 1, 2)
    full = ask("colocate", four(2, bounds=Bounds(max_training_cells=2)))
    assert (full.cell, full.reason, full.detail) == (2, Reason.BOUNDS, "3 training cells, at most 2")
    assert ask("colocate", four(2, bounds=Bounds(min_rollout_cells=2))).detail == "1 rollout cells left, at least 2"
    assert ask("colocate", four(4)).reason is Reason.NO_CELL


def test_pool_switches_with_executions_out_when_the_burst_has_all_its_groups() -> None:
    assert ask("colocate", four(0, work=5, ready=7, burst_needed=8)).verdict is Verdict.REFUSE
    assert ask("colocate", four(0, work=5, ready=8, burst_needed=8)).movers == (0, 1, 2, 3)


def test_pool_waits_for_cells_that_return_but_not_for_parked_ones() -> None:
    late = state(cell(0), cell(1), cell(2, CellRole.TO_ROLLOUT))
    assert ask("colocate", late).reason is Reason.NOT_SERVING
    assert ask("colocate", state(cell(0), cell(1, PARKED), cell(2))).movers == (0, 2)


# --- lending


def test_training_side_is_lent_between_steps_and_called_back_for_the_step() -> None:
    lent = ask("lending", four(2, split=2, work=9, ready=1, needed=B))
    assert (lent.movers, lent.direction, lent.reason) == ((0, 1), Direction.TO_ROLLOUT, Reason.LENT)
    assert ask("lending", four(0, split=2, work=9, ready=1, needed=B)).reason is Reason.SUPPLY
    back = ask("lending", four(0, split=2, work=9, ready=2, needed=B))
    assert (back.movers, back.direction) == ((0, 1), Direction.TO_TRAINING)


def test_nobody_is_lent_within_a_step_or_for_nothing() -> None:
    assert ask("lending", four(2, split=2, work=9, ready=0, needed=B - 1)).reason is Reason.SPLIT
    assert ask("lending", four(2, split=2, work=0, ready=0, needed=B)).verdict is Verdict.REFUSE


def test_without_streaming_a_step_needs_all_its_groups() -> None:
    seen = four(0, split=2, work=9, ready=3, needed=B, streaming=False)
    assert ask("lending", seen).reason is Reason.SUPPLY
    assert ask("lending", seen.model_copy(update={"ready_unassigned": 4})).movers == (0, 1)


# --- waterlevel beyond its own tests


def test_without_streaming_the_core_waits_for_the_whole_batch_and_shuffled_for_the_burst() -> None:
    seen = four(0, ready=3, streaming=False)
    assert ask("waterlevel", seen).reason is Reason.SUPPLY
    full = seen.model_copy(update={"ready_unassigned": 4})
    assert ask("waterlevel", full).movers == (0,)
    assert ask("waterlevel", full.model_copy(update={"burst_needed": 8})).reason is Reason.SUPPLY
    shuffled = full.model_copy(update={"burst_needed": 8, "ready_unassigned": 8})
    assert ask("waterlevel", shuffled).movers == (0,)


def test_registry_answers_as_waterlevel_itself() -> None:
    for seen in (four(0), four(1, work=6), four(2, ready=0), four(0, hold_seconds=5.0)):
        own, hold = waterlevel.decide(seen, None)
        decision, memory = registry.decide("waterlevel", seen, Memory())
        assert (decision, memory.hold) == (own, hold)


# --- all


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_bounds_bind_every_policy(policy: str) -> None:
    """Nobody may train: then nobody goes, whoever asks; and what would fall below the least does not go back."""
    limit = Bounds(min_rollout_cells=4)
    seen = four(0, ready=4, burst_needed=4, split=2, bounds=limit)
    assert ask(policy, seen).verdict is Verdict.REFUSE
    keep = Bounds(min_training_cells=2)
    assert ask(policy, four(2, split=2, work=9, ready=0, needed=B, bounds=keep)).direction is Direction.TO_TRAINING


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("role", [PARKED, CellRole.LOST, CellRole.STARTING])
def test_nobody_trains_without_the_core(policy: str, role: CellRole) -> None:
    decision = ask(policy, state(cell(0, role), cell(1), cell(2)))
    assert decision.reason in (Reason.CORE_PARKED, Reason.CORE_ABSENT)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("groups", [0, 1])
def test_sizes_at_the_edges(policy: str, groups: int) -> None:
    """A batch of nothing, and of one group, with one execution out and eight cells."""
    cells = [cell(index, slots=1) for index in range(8)]
    seen = state(*cells, work=1, ready=groups, needed=groups, groups_per_step=groups, split=3)
    for mover in ask(policy, seen).movers:
        assert 0 <= mover < 8


def test_starving_executions_get_the_highest_training_cell_back() -> None:
    all_train = four(4, work=2, ready=0, needed=2)
    decision = relief(all_train)
    assert decision is not None
    assert (decision.movers, decision.direction) == ((3,), Direction.TO_ROLLOUT)
    assert relief(four(3, work=2, ready=0, needed=2)) is None
    assert relief(all_train.model_copy(update={"ready_unassigned": 1})) is None
    waiting = all_train.model_copy(update={"ready_unassigned": 1, "streaming": False})
    assert relief(waiting) is not None
    assert relief(waiting.model_copy(update={"ready_unassigned": 2})) is None
    assert relief(all_train.model_copy(update={"batch": BatchView(batch="b", needed=0)})) is None
    assert relief(four(4, work=0, ready=0, needed=2)) is None
    returning = state(cell(0, TRAINING), cell(1, CellRole.TO_ROLLOUT), work=2, ready=0, needed=2)
    assert relief(returning) is None


@pytest.mark.parametrize("policy", ["async", "lending", "throughput"])
@pytest.mark.parametrize("mode", [SafeMode(), after_operator(SafeMode(), freeze=True, detail="a test", now=0.0)])
def test_the_last_engine_is_not_sent_where_relief_would_send_it_back_from(policy: str, mode: SafeMode) -> None:
    """Cell 1 is parked. With the core in training nobody would serve what is out, and training could not go on."""
    alone = state(cell(0), cell(1, PARKED), work=3, ready=0, split=1)
    decision = registry.decide(policy, alone, Memory(), mode)[0]
    assert decision.verdict is Verdict.REFUSE
    there = {"cells": (cell(0, TRAINING), cell(1, PARKED))}
    assert registry.decide(policy, alone.model_copy(update=there), Memory(), mode)[0].movers == (0,)
    for changes in ({"standalone_slots": 1}, {"finished": alone.dispatched}, {"ready_unassigned": 4}):
        other = alone.model_copy(update=changes)
        if policy != "lending" or changes == {"ready_unassigned": 4}:
            assert registry.decide(policy, other, Memory(), mode)[0].movers == (0,)


def test_a_move_that_would_starve_is_refused_for_that_reason() -> None:
    decision = ask("async", state(cell(0), cell(1, PARKED), work=3, ready=0))
    assert (decision.cell, decision.reason) == (0, Reason.STARVED)

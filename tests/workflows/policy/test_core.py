"""Whichever cell is the core: policies see it first and treat it alike, whatever its index."""

import pytest

from tests.workflows.policy.states import cell, state
from workflows.messages.fleet import CellRole
from workflows.policy import registry
from workflows.policy.memory import Memory
from workflows.policy.ordering import is_prefix
from workflows.policy.state import Decision, PolicyState

TRAINING, PARKED, LOST = CellRole.TRAINING, CellRole.PARKED, CellRole.LOST
OTHER = {0: 2, 1: 0, 2: 1}
"""Cell 0, the core, under another index; so the satellites."""
STATES = {
    "everybody serves": state(),
    "a late core": state(needed=1, ready=1),
    "a core whose batch has all": state(cell(0), cell(1, TRAINING), cell(2), needed=0, ready=0),
    "little supply": state(ready=1),
    "the core trains": state(cell(0, TRAINING), cell(1), cell(2)),
    "two train": state(cell(0, TRAINING), cell(1, TRAINING), cell(2), work=4),
    "nobody serves": state(cell(0, TRAINING), cell(1, TRAINING), cell(2, TRAINING), work=4, ready=0),
    "the core is parked": state(cell(0, PARKED), cell(1), cell(2)),
    "the core is lost": state(cell(0, LOST), cell(1, TRAINING), cell(2)),
    "without streaming": state(streaming=False, burst_needed=4),
    "between steps": state(cell(0, TRAINING), cell(1), cell(2), split=2, ready=0, work=3),
}


def renamed(seen: PolicyState) -> PolicyState:
    cells = tuple(view.model_copy(update={"index": OTHER[view.index]}) for view in seen.cells)
    return seen.model_copy(update={"cells": cells})


def named(decision: Decision) -> tuple[object, ...]:
    return decision.verdict, decision.reason, decision.direction, decision.recheck_seconds


@pytest.mark.parametrize("policy", sorted(registry.POLICIES))
@pytest.mark.parametrize("seen", STATES.values(), ids=STATES)
def test_decisions_do_not_depend_on_its_index(policy: str, seen: PolicyState) -> None:
    decision, memory = registry.decide(policy, seen, Memory())
    other, its_memory = registry.decide(policy, renamed(seen), Memory())
    assert named(other) == named(decision)
    assert other.cell == (None if decision.cell is None else OTHER[decision.cell])
    assert other.together == tuple(OTHER[cell] for cell in decision.together)
    assert (memory.hold is None) == (its_memory.hold is None)
    stay = registry.at_burst_end(policy, seen, 4)
    assert registry.at_burst_end(policy, renamed(seen), 4) == tuple(OTHER[cell] for cell in stay)
    assert registry.why_at_burst_end(policy, renamed(seen), 4) == registry.why_at_burst_end(policy, seen, 4)


def test_the_prefix_begins_with_it() -> None:
    seen = state(cell(2, TRAINING), cell(0), cell(1))
    assert (seen.core, is_prefix(seen, 0), is_prefix(seen, 1)) == (2, True, False)

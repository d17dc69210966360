"""The scheduler model of `model.py` with any policy, groups that are dropped and replaced, and measured staleness."""

from dataclasses import dataclass, field

from tests.workflows.policy.model import SchedulerModel
from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy import registry
from workflows.policy.bounds import rollout_count, training_count
from workflows.policy.memory import Memory
from workflows.policy.safe_mode import SafeMode, after_allocation, after_operator
from workflows.policy.starvation import starving
from workflows.policy.state import Bounds, Decision, PolicyState, Reason, Verdict


@dataclass
class AnyPolicyModel(SchedulerModel):
    """`ages`: staleness of every consumed group."""

    policy: str = "waterlevel"
    split: int = 1
    streaming: bool = True
    bounds: Bounds = field(default_factory=Bounds)
    memory: Memory = field(default_factory=Memory)
    mode: SafeMode = field(default_factory=SafeMode)
    version: int = 0
    born: dict[int, int] = field(default_factory=dict)
    ages: list[int] = field(default_factory=list)
    dropped: int = 0

    # --- what is

    def policy_state(self) -> PolicyState:
        later = (self.steps - self.step - 1) * self.groups_per_step
        extra = {
            "streaming": self.streaming,
            "split": self.split,
            "bounds": self.bounds,
            "burst_needed": None if self.needed is None else self.needed + later,
        }
        return super().policy_state().model_copy(update=extra)

    # --- what happens

    def open_burst(self) -> None:
        known = set(self.open_members)
        super().open_burst()
        self.born |= {group: self.version for group in self.open_members if group not in known}

    def drop(self) -> None:
        """The next complete group is not admitted; another one is dispatched in its place."""
        self.complete.pop(0)
        self.dropped += 1
        group = self.dispatched // self.group_size
        self.open_members[group] = self.group_size
        self.born[group] = self.version
        self.queue += [group] * self.group_size
        self.dispatched += self.group_size

    @property
    def may_assign(self) -> bool:
        started = bool(self.assigned) or len(self.ready) >= (self.needed or 0)
        return super().may_assign and (self.streaming or started)

    def commit(self) -> None:
        ages = [self.version - self.born[group] for group in self.assigned]
        assert min(ages, default=0) >= 0
        self.ages += ages
        self.version += 1
        super().commit()

    def _publish(self) -> None:
        quota = round((self.carry_over + self.steps) * self.groups_per_step)
        dispatch = max(0, quota - self.outstanding) * self.group_size
        stay = registry.at_burst_end(self.policy, self.policy_state(), dispatch, self.mode)
        assert set(stay) <= set(self.in_role(CellRole.TRAINING))
        for index in self.in_role(CellRole.TRAINING):
            if index not in stay:
                self.cells[index].role = CellRole.TO_ROLLOUT

    # --- what is decided

    def evaluate(self) -> Decision:
        state = self.policy_state()
        assert 0 <= self.finished <= self.launched <= self.dispatched
        assert state.waterlevel == self.waterlevel
        self.mode = after_allocation(self.mode, state)
        mover = next((i for i, c in enumerate(self.cells) if c.eligible and c.role is not CellRole.TRAINING), None)
        held = self._held(mover)
        decision, self.memory = registry.decide(self.policy, state, self.memory, self.mode)
        if decision.verdict is Verdict.MOVE:
            self._check(decision, state, mover, held)
            target = {Direction.TO_TRAINING: CellRole.TO_TRAINING, Direction.TO_ROLLOUT: CellRole.TO_ROLLOUT}
            for index in decision.movers:
                self.cells[index].role = target[decision.direction]
            self.held_since = None
        self.last = decision
        return decision

    def _check(self, decision: Decision, state: PolicyState, mover: int | None, held: float | None) -> None:
        roles = [self.cells[index].role for index in decision.movers]
        assert len(set(decision.movers)) == len(decision.movers) > 0
        if decision.direction is Direction.TO_ROLLOUT:
            assert set(roles) == {CellRole.TRAINING}
            if decision.reason is Reason.STARVED:
                assert self.capacity == 0 < self.waterlevel
            return
        assert set(roles) == {CellRole.ROLLOUT}
        assert all(self.cells[index].trains for index in decision.movers)
        assert not self.in_role(CellRole.TO_TRAINING), "one transition at a time"
        most = self.bounds.max_training_cells
        assert most is None or training_count(state) + len(roles) <= most
        assert rollout_count(state) - len(roles) >= self.bounds.min_rollout_cells
        roles_then = [CellRole.TRAINING if i in decision.movers else c.role for i, c in enumerate(self.cells)]
        then = [
            c.model_copy(update={"role": r, "serving": r is CellRole.ROLLOUT})
            for c, r in zip(state.cells, roles_then, strict=True)
        ]
        assert not starving(state.model_copy(update={"cells": tuple(then)})), "would have to come back at once"
        if self.policy == "waterlevel" and not self.mode.frozen:
            assert decision.movers == (mover,)
            assert mover is not None
            self._check_move(mover, held)

    def freeze(self, *, on: bool) -> None:
        self.mode = after_operator(self.mode, freeze=on, detail="a test", now=self.clock)

"""What both stateful tests share: events in any order on a scheduler model, the policy asked after each of them."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.workflows.policy.model import SchedulerModel
from workflows.messages.fleet import CellRole

AWAY = (CellRole.TO_ROLLOUT, CellRole.LOST, CellRole.PARKED)


class EventsInAnyOrder(RuleBasedStateMachine):
    """A subclass makes the model in its `initialize` rule. `rounds`: in which a burst must end once all goes well."""

    model: SchedulerModel
    rounds = 600

    @rule(which=st.integers(0, 50), times=st.integers(1, 6))
    def executions_end(self, which: int, times: int) -> None:
        """By themselves or terminated: either way once."""
        for _ in range(times):
            self.model.launch()
            if self.model.running:
                self.model.finish(which)
                self.model.evaluate()

    @precondition(lambda self: self.model.complete)
    @rule(times=st.integers(1, 3))
    def groups_are_admitted(self, times: int) -> None:
        """Much later than their last execution has ended, perhaps."""
        for _ in range(times):
            if self.model.complete:
                self.model.admit()
                self.model.evaluate()

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.1, 1.0, 2.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.model.pass_time(seconds)

    @precondition(lambda self: self.model.in_role(CellRole.TO_TRAINING))
    @rule(role=st.sampled_from([CellRole.TRAINING, CellRole.TRAINING, CellRole.ROLLOUT, CellRole.PARKED]))
    def departure_ends(self, role: CellRole) -> None:
        """Done, rolled back or parked."""
        self.model.cells[self.model.in_role(CellRole.TO_TRAINING)[0]].role = role

    @precondition(lambda self: self.model.in_role(*AWAY))
    @rule(which=st.integers(0, 4))
    def cell_comes_back(self, which: int) -> None:
        back = self.model.in_role(*AWAY)
        self.model.cells[back[which % len(back)]].role = CellRole.ROLLOUT

    @rule(which=st.integers(0, 4), role=st.sampled_from([CellRole.LOST, CellRole.PARKED]))
    def cell_fails(self, which: int, role: CellRole) -> None:
        self.model.cells[which % len(self.model.cells)].role = role

    @precondition(lambda self: self.model.may_assign)
    @rule(times=st.integers(1, 4))
    def groups_are_claimed(self, times: int) -> None:
        for _ in range(times):
            if self.model.may_assign:
                self.model.assign()

    @precondition(lambda self: self.model.may_commit)
    @rule()
    def batch_is_committed(self) -> None:
        self.model.commit()

    @rule(rounds=st.integers(1, 8))
    def all_goes_well_for_a_while(self, rounds: int) -> None:
        for _ in range(rounds):
            settle(self.model)

    @invariant()
    def policy_is_asked(self) -> None:
        if hasattr(self, "model"):
            self.model.evaluate()

    def teardown(self) -> None:
        """Whatever happened before: with every cell back, the burst ends by executions ending alone."""
        if not hasattr(self, "model"):
            return
        model, goal = self.model, self.model.bursts + 1
        for index in model.in_role(CellRole.LOST, CellRole.PARKED):
            model.cells[index].role = CellRole.ROLLOUT
        settle_until(model, goal, self.rounds)


def settle(model: SchedulerModel, which: int = 0) -> None:
    """One round of everything that may happen without a fault; `which` execution ends."""
    for index in model.in_role(CellRole.TO_TRAINING):
        model.cells[index].role = CellRole.TRAINING
    for index in model.in_role(CellRole.TO_ROLLOUT):
        model.cells[index].role = CellRole.ROLLOUT
    model.launch()
    if model.running:
        model.finish(which)
    model.evaluate()
    while model.complete:
        model.admit()
        model.evaluate()
    model.pass_time(model.hold_seconds + 0.5)
    model.evaluate()
    if model.may_assign:
        model.assign()
        model.evaluate()
    if model.may_commit:
        model.commit()


def settle_until(model: SchedulerModel, bursts: int, rounds: int) -> None:
    """Rounds until so many bursts are over; fails when that many rounds are not enough."""
    for _ in range(rounds):
        if model.bursts >= bursts:
            return
        settle(model)
    raise AssertionError(f"stuck in burst {model.bursts}: {model}")

"""A tiny scheduler in memory: executions, groups, batches and cells as counters and roles, driven by the real policy.

True time only rises; the clock that the policy sees may be set back. Whatever the policy decides is compared with
what this model knows by its own counting.
"""

from dataclasses import dataclass, field

from workflows.messages.fleet import CellRole
from workflows.policy.dispatch import launchable, top_up
from workflows.policy.state import BatchView, CellView, Decision, Hold, PolicyState, Reason, Verdict
from workflows.policy.waterlevel import after_publish, core_may_stay, decide

ABSENT = (CellRole.PARKED, CellRole.LOST, CellRole.STARTING)
MARGIN_SECONDS = 1e-6


@dataclass
class ModelCell:
    slots: int
    trains: bool = True
    role: CellRole = CellRole.ROLLOUT

    @property
    def eligible(self) -> bool:
        return self.trains and self.role not in ABSENT


@dataclass
class SchedulerModel:
    """One run of burst after burst. `groups_per_step` is B, `group_size` N, `steps` mu, `carry_over` phi.

    `complete`: groups whose executions are all over and which are not admitted yet: nobody's work, nobody's supply.
    """

    cells: list[ModelCell]
    groups_per_step: int
    group_size: int
    steps: int
    carry_over: float
    supply_fraction: float
    hold_seconds: float
    elapsed: float = 0.0
    clock: float = 1_700_000_000.0
    dispatched: int = 0
    launched: int = 0
    finished: int = 0
    queue: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    open_members: dict[int, int] = field(default_factory=dict)
    complete: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    assigned: list[int] = field(default_factory=list)
    needed: int | None = None
    step: int = 0
    bursts: int = 0
    core_stays: bool = False
    hold: Hold | None = None
    held_since: tuple[int, float] | None = None
    last: Decision | None = None

    # --- what is

    @property
    def waterlevel(self) -> int:
        return len(self.queue) + len(self.running)

    @property
    def capacity(self) -> int:
        return sum(cell.slots for cell in self.cells if cell.role is CellRole.ROLLOUT)

    @property
    def outstanding(self) -> int:
        return len(self.open_members) + len(self.complete) + len(self.ready) + len(self.assigned)

    def in_role(self, *roles: CellRole) -> list[int]:
        return [index for index, cell in enumerate(self.cells) if cell.role in roles]

    def policy_state(self) -> PolicyState:
        return PolicyState(
            now=self.clock,
            dispatched=self.dispatched,
            launched=self.launched,
            finished=self.finished,
            cells=tuple(
                CellView(
                    index=index,
                    role=cell.role,
                    slots=cell.slots,
                    trains=cell.trains,
                    serving=cell.role is CellRole.ROLLOUT,
                )
                for index, cell in enumerate(self.cells)
            ),
            ready_unassigned=len(self.ready),
            batch=None if self.needed is None else BatchView(batch="b", needed=self.needed),
            groups_per_step=self.groups_per_step,
            supply_fraction=self.supply_fraction,
            hold_seconds=self.hold_seconds,
            move_under_way=bool(self.in_role(CellRole.TO_TRAINING)),
        )

    # --- what happens

    def open_burst(self) -> None:
        quota = round((self.carry_over + self.steps) * self.groups_per_step)
        before = self.outstanding
        for _ in range(top_up(quota, before)):
            group = self.dispatched // self.group_size
            self.open_members[group] = self.group_size
            self.queue += [group] * self.group_size
            self.dispatched += self.group_size
        assert self.outstanding == max(before, quota)
        self.step, self.needed = 0, self.groups_per_step

    def launch(self) -> None:
        count = launchable(self.capacity, len(self.running), len(self.queue))
        assert count == 0 or len(self.running) + count <= self.capacity
        self.running += self.queue[:count]
        del self.queue[:count]
        self.launched += count

    def finish(self, which: int) -> None:
        group = self.running.pop(which % len(self.running))
        self.finished += 1
        self.open_members[group] -= 1
        if not self.open_members[group]:
            del self.open_members[group]
            self.complete.append(group)

    def admit(self) -> None:
        """The next complete group has its place in the order of admission."""
        self.ready.append(self.complete.pop(0))

    def assign(self) -> None:
        """A training cell claims the first micro-step of the next group."""
        assert self.needed
        self.assigned.append(self.ready.pop(0))
        self.needed -= 1

    @property
    def may_assign(self) -> bool:
        return bool(self.needed and self.ready and self.in_role(CellRole.TRAINING))

    @property
    def may_commit(self) -> bool:
        return self.needed == 0 and self.cells[0].role is CellRole.TRAINING

    def commit(self) -> None:
        self.assigned.clear()
        self.step += 1
        self.needed = self.groups_per_step
        if self.step < self.steps:
            return
        self.needed, self.bursts = None, self.bursts + 1
        self._publish()
        self.open_burst()

    def _publish(self) -> None:
        quota = round((self.carry_over + self.steps) * self.groups_per_step)
        dispatch = top_up(quota, self.outstanding) * self.group_size
        stays = core_may_stay(after_publish(self.policy_state(), self.groups_per_step), dispatch)
        self.core_stays = stays.verdict is Verdict.MOVE
        if self.core_stays:
            without = sum(cell.slots for cell in self.cells[1:] if cell.role not in ABSENT)
            assert self.waterlevel + dispatch <= without
            assert len(self.ready) >= 1
        for index in self.in_role(CellRole.TRAINING):
            if not (index == 0 and self.core_stays):
                self.cells[index].role = CellRole.TO_ROLLOUT

    def pass_time(self, seconds: float) -> None:
        self.elapsed += seconds
        self.clock += seconds

    # --- what is decided

    def evaluate(self) -> Decision:
        """Ask the policy, compare its answer with the model's own, and start the move if there is one."""
        state = self.policy_state()
        assert 0 <= self.finished <= self.launched <= self.dispatched
        assert state.waterlevel == self.waterlevel
        mover = next((i for i, c in enumerate(self.cells) if c.eligible and c.role is not CellRole.TRAINING), None)
        held = self._held(mover)
        decision, self.hold = decide(state, self.hold)
        if decision.verdict is Verdict.MOVE:
            assert decision.cell is not None
            assert decision.cell == mover
            self._check_move(decision.cell, held)
            self.cells[decision.cell].role = CellRole.TO_TRAINING
            self.held_since = None
        else:
            self._check_refusal(decision, state, mover, held)
        self.last = decision
        return decision

    def _held(self, mover: int | None) -> float | None:
        """Seconds of true time for which the mover's supply test has held at every look, or None."""
        core = self.cells[0].role
        if mover is None or core in ABSENT or self.needed is None or not self._has_supply(mover):
            self.held_since = None
            return None
        if self.held_since is None or self.held_since[0] != mover:
            self.held_since = (mover, self.elapsed)
        return self.elapsed - self.held_since[1]

    def _has_supply(self, mover: int) -> bool:
        needed = self.needed or 0
        if mover == 0 and needed == 0:
            return self.groups_per_step > 0
        least = 1
        while least < self.supply_fraction * self.groups_per_step - MARGIN_SECONDS:
            least += 1
        if mover == 0:
            least = min(least, needed)
        return min(len(self.ready), needed) >= least

    def _check_move(self, mover: int, held: float | None) -> None:
        left = self.capacity - self.cells[mover].slots
        assert self.waterlevel <= left, "capacity"
        assert self.cells[mover].role is CellRole.ROLLOUT
        assert not self.in_role(CellRole.TO_TRAINING), "one at a time"
        below = [cell.role for cell in self.cells[:mover] if cell.eligible]
        assert all(role is CellRole.TRAINING for role in below), "prefix"
        assert self.cells[0].role not in ABSENT
        assert held is not None
        assert held >= self.hold_seconds - MARGIN_SECONDS, "hold"

    def _check_refusal(self, decision: Decision, state: PolicyState, mover: int | None, held: float | None) -> None:
        match decision.reason:
            case Reason.CAPACITY:
                assert decision.cell is not None
                assert self.waterlevel > self.capacity - self.cells[decision.cell].slots
            case Reason.SUPPLY | Reason.NO_BATCH:
                assert held is None
            case Reason.HOLD:
                assert decision.recheck_seconds is not None
                later = state.model_copy(update={"now": state.now + decision.recheck_seconds})
                again, _ = decide(later, self.hold)
                assert again.verdict is Verdict.MOVE or (again.recheck_seconds or 1) < MARGIN_SECONDS
            case Reason.MOVE_UNDER_WAY:
                assert self.in_role(CellRole.TO_TRAINING)
            case Reason.CORE_PARKED:
                assert self.cells[0].role is CellRole.PARKED
            case Reason.CORE_ABSENT:
                assert self.cells[0].role in (CellRole.LOST, CellRole.STARTING)
            case Reason.NO_CELL:
                assert mover is None
            case _:
                assert decision.reason is Reason.NOT_SERVING
                assert mover is not None
                assert self.cells[mover].role is not CellRole.ROLLOUT

"""Case 39: the Scheduler's books under any order of events: counters, once-only closing, admission, nothing lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workflows.accounts import Accounts, AccountsState
from workflows.messages import ids
from workflows.messages.burst import BurstSpec, Purpose
from workflows.messages.control import ExecutionFate
from workflows.messages.execution import EndReason, ExecutionClosed, Outcome
from workflows.messages.group import AdmittedGroup

RUN = "r"


class AccountsMachine(RuleBasedStateMachine):
    """A model that keeps every id it has ever seen; `Accounts` keeps only what is open."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Accounts(RUN, AccountsState())
        self.sizes: dict[str, BurstSpec] = {}
        self.started: dict[str, int] = {}
        self.closed: set[str] = set()
        self.trained: list[str] = []
        self.given_up: set[str] = set()
        self.sequence = 0

    @rule(groups=st.integers(0, 4), size=st.integers(1, 3), evaluate=st.booleans())
    def dispatch(self, groups: int, size: int, evaluate: bool) -> None:
        name = f"b{len(self.sizes)}"
        purpose = Purpose.EVALUATE if evaluate else Purpose.TRAIN
        spec = BurstSpec(run=RUN, name=name, tasks="t", purpose=purpose, executions_per_group=size)
        before = self.books.dispatched
        assert self.books.dispatch(spec, [f"task-{n}" for n in range(groups)], 3) == groups * size
        assert self.books.dispatched == before + groups * size
        assert self.books.knows(name)
        self.sizes[name] = spec

    @rule(count=st.integers(0, 5))
    def launch(self, count: int) -> None:
        queued = self.books.queued
        taken = self.books.launch(count, now=1.0)
        assert len(taken) == min(count, queued)
        for spec in taken:
            name = ids.execution_id(RUN, spec.burst, spec.group, spec.member)
            assert name not in self.started
            assert spec.seed == self.books.spec_of(spec.burst, spec.group, spec.member).seed
            self.started[name] = len(self.started)

    @precondition(lambda self: self.started)
    @rule(data=st.data(), reward=st.sampled_from([None, 0.0, 1.0]))
    def close(self, data: st.DataObject, reward: float | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.started)))
        _, burst, group, member = name.rsplit("/", 3)
        report = ExecutionClosed(
            execution=name,
            burst=burst,
            group=int(group),
            member=int(member),
            end=EndReason.EXITED,
            outcome=Outcome.SCORED if reward is not None else Outcome.NO_ARTIFACT,
            reward=reward,
        )
        before = self.books.carry()
        first = self.books.close(report)
        assert first == (name not in self.closed)
        if not first:
            assert self.books.carry() == before
        self.closed.add(name)

    @rule(execution=st.sampled_from(["", "x", "r/execution/b0/0099/00", "r/execution/nobody/0000/00", "/"]))
    def close_unknown(self, execution: str) -> None:
        before = self.books.carry()
        report = ExecutionClosed(
            execution=execution, burst="b0", group=0, member=0, end=EndReason.EXITED, outcome=Outcome.SCORED
        )
        assert not self.books.close(report)
        assert self.books.carry() == before

    @precondition(lambda self: self.started.keys() - self.closed)
    @rule(data=st.data())
    def sweep(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.started.keys() - self.closed)))
        fate = ExecutionFate(execution=name, status="terminated", end=EndReason.TERMINATED, outcome=Outcome.NO_ARTIFACT)
        if ids.group_id(*_group(name)) in self.books.groups:
            assert self.books.finish_of(fate).spec.member == int(name[-2:])
        assert self.books.close(self.books.closed_of(fate))
        self.closed.add(name)

    @rule(keep=st.booleans())
    def admit(self, keep: bool) -> None:
        name = self.books.next_complete(None)
        if name is None:
            return
        request = self.books.admission_of(name, 3)
        assert all(execution in self.closed or execution not in self.started for execution in request.executions)
        self.sequence += 1
        group = AdmittedGroup(burst=request.burst, group=request.group, sequence=self.sequence, valid=1)
        self.books.admit(group, keep=keep)
        self.books.admit(group, keep=keep)  # a repeated one changes nothing
        if not keep:
            self.given_up.add(name)

    @rule(count=st.integers(0, 3))
    def train(self, count: int) -> None:
        taken = [ids.group_id(group.burst, group.group) for group in self.books.ready[:count]]
        self.books.assigned.update(taken)
        self.books.consume(taken)
        self.trained += taken

    @precondition(lambda self: self.sizes)
    @rule(data=st.data(), wait=st.booleans())
    def cancel(self, data: st.DataObject, wait: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.sizes)))
        queued, finished = self.books.queued, self.books.finished
        cancelled = self.books.cancel_queued(name) if name in self.books.bursts else 0
        assert self.books.queued == queued - cancelled
        assert self.books.finished == finished + cancelled
        if not wait:  # the Scheduler waits for what runs; the books survive it if it does not
            self.books.abandon_burst(name)
            self.given_up |= {f"{name}/{number:04d}" for number in range(self.books.next_group[name])}
            self.given_up -= set(self.trained)
            assert all(group.burst != name for group in self.books.ready)

    @rule()
    def roll_over(self) -> None:
        state = self.books.carry()
        again = AccountsState.model_validate_json(state.model_dump_json())
        assert again == state
        self.books = Accounts(RUN, again)
        assert self.books.carry() == state

    @invariant()
    def counters_are_in_order(self) -> None:
        books = self.books
        assert 0 <= books.finished <= books.launched <= books.dispatched
        assert books.running == len(books.roster) == len(self.started.keys() - self.closed)
        assert books.waterlevel == books.queued + books.running >= 0

    @invariant()
    def queue_is_what_is_not_launched(self) -> None:
        books = self.books
        waiting = [books.groups[name] for name in books.queue]
        sizes = [self.sizes[group.burst].executions_per_group - group.next_member for group in waiting]
        assert sum(sizes) == books.queued

    @invariant()
    def no_training_group_is_lost(self) -> None:
        open_groups = set(self.books.groups) | {ids.group_id(g.burst, g.group) for g in self.books.ready}
        assert len(self.trained) == len(set(self.trained))
        assert open_groups.isdisjoint(self.trained)
        for name, spec in self.sizes.items():
            if spec.purpose is Purpose.TRAIN:
                every = {ids.group_id(name, number) for number in range(self.books.next_group[name])}
                assert every <= open_groups | set(self.trained) | self.given_up

    @invariant()
    def ready_groups_keep_their_order(self) -> None:
        sequences = [group.sequence for group in self.books.ready]
        assert sequences == sorted(sequences)


def _group(name: str) -> tuple[str, int]:
    _, burst, group, _ = name.rsplit("/", 3)
    return burst, int(group)


TestAccounts = AccountsMachine.TestCase
TestAccounts.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

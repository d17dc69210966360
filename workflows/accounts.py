"""The Scheduler's books: counters, queue, roster, groups. Pure bookkeeping, no Temporal, no clock.

Invariants: 0 <= finished <= launched <= dispatched at every moment; an execution is closed once, by its id; a group
is complete when all its executions are closed.
"""

import hashlib
from collections.abc import Sequence

from pydantic import Field

from workflows.messages import ids
from workflows.messages.base import Message
from workflows.messages.burst import BurstSpec, Purpose
from workflows.messages.control import ExecutionFate
from workflows.messages.execution import (
    Evaluation,
    ExecutionClosed,
    ExecutionSpec,
    FinishExecution,
    HarnessRun,
    Outcome,
)
from workflows.messages.group import AdmitGroup, AdmittedGroup


class OpenGroup(Message):
    """A dispatched group that is not yet admitted. `next_member`: the first one not yet launched."""

    burst: str
    group: int
    task: str
    dispatch_version: int
    next_member: int = 0
    closed: dict[int, str] = Field(default={}, description="member -> outcome")
    rewards: dict[int, float] = {}

    @property
    def name(self) -> str:
        return ids.group_id(self.burst, self.group)


class AccountsState(Message):
    """The books as they are carried over."""

    dispatched: int = 0
    launched: int = 0
    finished: int = 0
    bursts: dict[str, BurstSpec] = {}
    next_group: dict[str, int] = {}
    queue: tuple[str, ...] = Field(default=(), description="groups with members not yet launched, in order")
    groups: tuple[OpenGroup, ...] = ()
    roster: dict[str, float] = Field(default={}, description="running execution -> launched at")
    complete: tuple[str, ...] = Field(default=(), description="training groups closed, waiting for admission")
    ready: tuple[AdmittedGroup, ...] = Field(default=(), description="admitted, not consumed, in order of admission")
    assigned: tuple[str, ...] = Field(default=(), description="ready groups with a claimed micro-step")


class Accounts:
    """The live books."""

    def __init__(self, run: str, state: AccountsState) -> None:
        self.run = run
        self.dispatched, self.launched, self.finished = state.dispatched, state.launched, state.finished
        self.bursts = dict(state.bursts)
        self.next_group = dict(state.next_group)
        self.queue = list(state.queue)
        self.groups = {group.name: group for group in state.groups}
        self.roster = dict(state.roster)
        self.complete = list(state.complete)
        self.ready = list(state.ready)
        self.assigned = set(state.assigned)

    # --- dispatch and launch

    def dispatch(self, spec: BurstSpec, tasks: Sequence[str], version: int) -> int:
        """Queue one group per task; counted at once. Returns the number of executions."""
        busy = {group.burst for group in self.groups.values()}
        self.bursts = {name: known for name, known in self.bursts.items() if name in busy}
        self.bursts[spec.name] = spec
        first = self.next_group.get(spec.name, 0)
        for offset, task in enumerate(tasks):
            group = OpenGroup(burst=spec.name, group=first + offset, task=task, dispatch_version=version)
            self.groups[group.name] = group
            self.queue.append(group.name)
        self.next_group[spec.name] = first + len(tasks)
        executions = len(tasks) * spec.executions_per_group
        self.dispatched += executions
        return executions

    def launch(self, count: int, now: float) -> list[ExecutionSpec]:
        """Take up to `count` executions from the queue; they are launched from now on."""
        taken: list[ExecutionSpec] = []
        while len(taken) < count and self.queue:
            group = self.groups[self.queue[0]]
            spec = self.spec_of(group.burst, group.group, group.next_member)
            self.groups[group.name] = group.model_copy(update={"next_member": group.next_member + 1})
            if group.next_member + 1 >= self.bursts[group.burst].executions_per_group:
                self.queue.pop(0)
            self.roster[ids.execution_id(self.run, group.burst, group.group, group.next_member)] = now
            taken.append(spec)
        self.launched += len(taken)
        return taken

    def spec_of(self, burst: str, group: int, member: int) -> ExecutionSpec:
        """The start of one execution.

        Its seed follows from the burst's seed and the execution's place; that of an evaluation not from the burst's
        name, so that two evaluations of the same tasks sample with the same seeds.
        """
        spec = self.bursts[burst]
        known = self.groups[ids.group_id(burst, group)]
        return ExecutionSpec(
            run=self.run,
            burst=burst,
            group=group,
            member=member,
            purpose=spec.purpose,
            task=known.task,
            seed=_seed(spec, group, member),
            dispatch_version=known.dispatch_version,
            sampling=spec.sampling,
            harness=spec.harness,
            limits=spec.limits,
            no_artifact=spec.no_artifact,
            selection=spec.training.selection,
        )

    @property
    def queued(self) -> int:
        return self.dispatched - self.launched

    @property
    def running(self) -> int:
        return self.launched - self.finished

    @property
    def waterlevel(self) -> int:
        return self.dispatched - self.finished

    # --- closing

    def close(self, closed: ExecutionClosed) -> bool:
        """Count a closed execution, once. False for a duplicate, a late or an unknown one: nothing changes."""
        if self.roster.pop(closed.execution, None) is None:
            return False
        self.finished += 1
        self._close_member(*_place(closed.execution), closed.outcome, closed.reward)
        return True

    def cancel_queued(self, burst: str) -> int:
        """Close what this burst still has queued as cancelled: launched and finished at once. Returns how many."""
        cancelled = 0
        for name in [name for name in self.queue if self.groups[name].burst == burst]:
            self.queue.remove(name)
            group = self.groups[name]
            for member in range(group.next_member, self.bursts[burst].executions_per_group):
                self.launched += 1
                self.finished += 1
                cancelled += 1
                self._close_member(burst, group.group, member, Outcome.NO_ARTIFACT, None)
        return cancelled

    def finish_of(self, fate: ExecutionFate) -> FinishExecution:
        """How to end an execution whose workflow is gone without a report."""
        burst, group, member = _place(fate.execution)
        return FinishExecution(
            spec=self.spec_of(burst, group, member),
            run=HarnessRun(end=fate.end, detail=f"workflow {fate.status}"),
            evaluation=Evaluation(outcome=fate.outcome, reward=fate.reward),
        )

    def closed_of(self, fate: ExecutionFate) -> ExecutionClosed:
        """The report that such an execution never made."""
        burst, group, member = _place(fate.execution)
        return ExecutionClosed(
            execution=fate.execution,
            burst=burst,
            group=group,
            member=member,
            end=fate.end,
            outcome=fate.outcome,
            reward=fate.reward,
            target_tokens=fate.target_tokens,
        )

    def _close_member(self, burst: str, number: int, member: int, outcome: Outcome, reward: float | None) -> None:
        group = self.groups.get(ids.group_id(burst, number))
        if group is None:
            return  # given up with its burst
        rewards = {**group.rewards, member: reward} if reward is not None else group.rewards
        group = group.model_copy(update={"closed": {**group.closed, member: outcome.value}, "rewards": rewards})
        self.groups[group.name] = group
        spec = self.bursts[burst]
        if len(group.closed) == spec.executions_per_group and spec.purpose is Purpose.TRAIN:
            self.complete.append(group.name)

    # --- groups

    def next_complete(self, given_up: str | None) -> str | None:
        """The group to admit next; none of the burst `given_up`."""
        return next((name for name in self.complete if self.groups[name].burst != given_up), None)

    def knows(self, burst: str) -> bool:
        """Whether a burst of this name ever dispatched here."""
        return burst in self.next_group

    def outstanding(self) -> int:
        """Training groups dispatched and not yet consumed by an update."""
        open_groups = sum(self.bursts[group.burst].purpose is Purpose.TRAIN for group in self.groups.values())
        return open_groups + len(self.ready)

    def admit(self, group: AdmittedGroup, *, keep: bool) -> None:
        """The group has its place in the order of admission; without `keep` (a refilled one) it is consumed.

        A group that was given up with its burst meanwhile stays given up.
        """
        name = ids.group_id(group.burst, group.group)
        if self.groups.pop(name, None) is None:
            return
        self.complete = [other for other in self.complete if other != name]
        if keep:
            self.ready.append(group)

    def consume(self, names: Sequence[str]) -> None:
        """These groups went into an update (or were abandoned)."""
        gone = set(names)
        self.ready = [group for group in self.ready if ids.group_id(group.burst, group.group) not in gone]
        self.assigned -= gone

    def admission_of(self, name: str, version: int) -> AdmitGroup:
        """What to ask for a complete group's admission, at the published `version`."""
        group = self.groups[name]
        spec = self.bursts[group.burst]
        members = range(spec.executions_per_group)
        return AdmitGroup(
            run=self.run,
            burst=group.burst,
            group=group.group,
            executions=tuple(ids.execution_id(self.run, group.burst, group.group, member) for member in members),
            training=spec.training,
            version=version,
        )

    @property
    def ready_unassigned(self) -> int:
        return sum(ids.group_id(group.burst, group.group) not in self.assigned for group in self.ready)

    def open_members(self, burst: str) -> int:
        """Executions of this burst that are not closed yet."""
        size = self.bursts[burst].executions_per_group
        return sum(size - len(group.closed) for group in self.groups.values() if group.burst == burst)

    def evaluation(self, burst: str) -> tuple[int, int, float | None]:
        """(executions, valid ones, mean reward over valid ones) of an evaluation."""
        groups = [group for group in self.groups.values() if group.burst == burst]
        rewards = [reward for group in groups for _, reward in sorted(group.rewards.items())]
        closed = sum(len(group.closed) for group in groups)
        return closed, len(rewards), sum(rewards) / len(rewards) if rewards else None

    def abandon_burst(self, burst: str) -> None:
        """Nothing of this burst runs any more and nothing of it will be trained: forget it."""
        gone = {group.name for group in self.groups.values() if group.burst == burst}
        self.consume([ids.group_id(group.burst, group.group) for group in self.ready if group.burst == burst])
        self.groups = {name: group for name, group in self.groups.items() if name not in gone}
        self.complete = [name for name in self.complete if name not in gone]
        self.bursts.pop(burst, None)

    def carry(self) -> AccountsState:
        return AccountsState(
            dispatched=self.dispatched,
            launched=self.launched,
            finished=self.finished,
            bursts=self.bursts,
            next_group=self.next_group,
            queue=tuple(self.queue),
            groups=tuple(self.groups.values()),
            roster=self.roster,
            complete=tuple(self.complete),
            ready=tuple(self.ready),
            assigned=tuple(sorted(self.assigned)),
        )


def _place(execution: str) -> tuple[str, int, int]:
    """(burst, group, member) of an execution id."""
    _, burst, group, member = execution.rsplit("/", 3)
    return burst, int(group), int(member)


def _seed(spec: BurstSpec, group: int, member: int) -> int:
    scope = "evaluation" if spec.purpose is Purpose.EVALUATE else spec.name
    digest = hashlib.sha256(f"{spec.seed}/{scope}/{group}/{member}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1

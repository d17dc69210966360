"""Executions in a simulated run: queue, launch, engines, time limit, scoring, groups that become ready.

Invariants: 0 <= finished <= launched <= dispatched; an execution ends once. As in the live system an execution is
running until it is scored, and counts for the waterlevel until then.
"""

import sys
from collections import deque
from dataclasses import dataclass

import simpy

from infra.simulator.engine import Engine, Key
from infra.simulator.outcome import LONG_SECONDS
from infra.simulator.scenario import Scenario
from infra.simulator.telemetry import Gauge
from infra.simulator.trainer import ReadyGroup
from infra.simulator.workload import Work, Workload
from workflows.messages.fleet import CellRole
from workflows.policy.dispatch import launchable


@dataclass(slots=True, eq=False)
class Cell:
    """One cell; standalone engines never train and have a negative index. `wake`: the valid appointment."""

    index: int
    engine: Engine
    role: CellRole = CellRole.ROLLOUT
    since: float = 0.0
    wake: int = 0


@dataclass(slots=True)
class OpenGroup:
    """A dispatched group: executions left, training work so far, seconds of its longest execution."""

    version: int
    left: int
    weight: float = 0.0
    longest: float = 0.0


def pool_of(scenario: Scenario, cells: int) -> list[Cell]:
    """The pool's slots over its cells, as evenly as they go."""
    slots, slowdown = scenario.engines.slots, scenario.engines.slowdown
    return [
        Cell(index, Engine(slots * (index + 1) // cells - slots * index // cells, slowdown)) for index in range(cells)
    ]


def standalone_of(scenario: Scenario) -> list[Cell]:
    count = scenario.engines.standalone_slots
    return [Cell(-1, Engine(count, scenario.engines.slowdown))] if count else []


class Executions:
    """What runs where. `_look` is called after every event; the subclass decides there."""

    def __init__(self, scenario: Scenario, cells: int, workload: Workload) -> None:
        self.scenario, self.workload = scenario, workload
        self.env = simpy.Environment()
        self.cells, self.standalone = pool_of(scenario, cells), standalone_of(scenario)
        self.gauge = Gauge(scenario)
        self.dispatched = self.launched = self.finished = 0
        self.queue: deque[Key] = deque()
        self.open: dict[int, OpenGroup] = {}
        self.ready: deque[ReadyGroup] = deque()
        self.running: dict[Key, tuple[Cell | None, float]] = {}
        self.homeless: dict[Key, tuple[float, float]] = {}
        self.deadlines: deque[tuple[float, Key]] = deque()
        self.to_score: deque[Key] = deque()
        self.scoring: set[Key] = set()
        told = scenario.engines
        self.harness_slots = told.harness_slots or sys.maxsize
        self.evaluator_slots = told.evaluator_slots or sys.maxsize
        self._launcher_free_at = 0.0
        self.timed_out = self.rerouted = 0
        self.execution_seconds = self.query_seconds = 0.0
        self.queries = self.long_queries = 0

    def _look(self) -> None:
        """After an event."""

    @property
    def in_harness(self) -> int:
        """Running executions that are not waiting for their score, or being scored."""
        return len(self.running) - len(self.to_score) - len(self.scoring)

    def _dispatch(self, group: int, version: int) -> None:
        size = len(self.workload.group(group))
        self.open[group] = OpenGroup(version, size)
        self.queue.extend((group, member) for member in range(size))
        self.dispatched += size

    def _order(self, count: int) -> None:
        """The last `count` of the queue were dispatched together: they start in the order in which they once did."""
        newest = [self.queue.pop() for _ in range(count)][::-1]
        self.queue.extend(sorted(newest, key=lambda key: self._work(key).started))

    def _serving(self) -> list[Cell]:
        """Engines that serve, in the order in which a leaving cell's executions are sent to them."""
        return [*self.standalone, *(cell for cell in reversed(self.cells) if cell.role is CellRole.ROLLOUT)]

    def _reroute(self, cell: Cell) -> None:
        """A cell leaves: its executions go where there is room, else to the least loaded; without any they wait."""
        targets, touched = self._serving(), set[Cell]()
        for key, left, share in cell.engine.drain(self.env.now):
            self.rerouted += 1
            self._place(key, left + self.scenario.transitions.reroute_seconds, share, targets, touched)
        cell.wake += 1
        for target in touched:
            self._schedule(target)

    def _house(self) -> None:
        """Executions that have waited without an engine go on."""
        targets, touched = self._serving(), set[Cell]()
        for key, (left, share) in sorted(self.homeless.items()):
            self._place(key, left, share, targets, touched)
        for target in touched:
            self._schedule(target)

    def _place(self, key: Key, left: float, share: float, targets: list[Cell], touched: set[Cell]) -> None:
        launched_at = self.running[key][1]
        self.homeless.pop(key, None)
        if not targets:
            self.homeless[key] = (left, share)
            self.running[key] = (None, launched_at)
            return
        room = [target for target in targets if target.engine.free > 0]
        target = room[0] if room else max(targets, key=lambda one: one.engine.free / one.engine.slots)
        target.engine.add(self.env.now, key, left, share)
        self.running[key] = (target, launched_at)
        touched.add(target)

    def _launch(self) -> None:
        serving = self._serving()
        capacity = sum(cell.engine.slots for cell in serving)
        count = launchable(capacity, len(self.running), len(self.queue))
        count = min(count, max(0, self.harness_slots - self.in_harness))
        touched = set[Cell]()
        for _ in range(count):
            key = self.queue.popleft()
            self.launched += 1
            if wait := self._start_seconds(self._work(key)):
                self.running[key] = (None, self.env.now)
                self.env.timeout(wait).callbacks.append(lambda _, key=key: self._started(key))
            else:
                touched |= self._start(key, serving)
        for cell in touched:
            self._schedule(cell)

    def _started(self, key: Key) -> None:
        for cell in self._start(key, self._serving()):
            self._schedule(cell)

    def _start(self, key: Key, serving: list[Cell]) -> set[Cell]:
        """A launched execution goes to the emptiest engine; returns that one, or nothing while none serves."""
        now, work = self.env.now, self._work(key)
        seconds = work.seconds * self.gauge.phase(self._step_of(key[0])).duration_scale
        limit = self.scenario.durations.timeout_seconds
        if limit is not None:
            self.deadlines.append((now + limit, key))
            if len(self.deadlines) == 1:
                self.env.timeout(limit).callbacks.append(self._deadline)
        if not serving:
            self.running[key], self.homeless[key] = (None, now), (seconds, work.model_share)
            return set()
        cell = max(serving, key=lambda one: (one.engine.free / one.engine.slots, one.index))
        self.running[key] = (cell, now)
        cell.engine.add(now, key, seconds, work.model_share)
        return {cell}

    def _start_seconds(self, work: Work) -> float:
        """Until an execution that is launched now has started: those launched before it start first. What is launched
        at the very beginning starts when it did in its recorded run."""
        if self.env.now == 0.0 and work.started:
            self._launcher_free_at = max(self._launcher_free_at, work.started)
            return work.started
        self._launcher_free_at = max(self._launcher_free_at, self.env.now) + self.scenario.engines.launch_seconds
        return self._launcher_free_at - self.env.now

    def _work(self, key: Key) -> Work:
        return self.workload.group(key[0])[key[1]]

    def _step_of(self, group: int) -> int:
        """The optimizer step a group is meant for: phases of the workload follow it, for every policy alike."""
        return group // self.scenario.groups_per_step

    def _schedule(self, cell: Cell) -> None:
        """Wake up when the engine's next execution ends; an earlier appointment is void."""
        cell.wake += 1
        end = cell.engine.next_end(self.env.now)
        if end is not None:
            wake = cell.wake
            timeout = self.env.timeout(max(0.0, end - self.env.now))
            timeout.callbacks.append(lambda _: self._engine_wakes(cell) if cell.wake == wake else None)

    def _engine_wakes(self, cell: Cell) -> None:
        for key in cell.engine.ended(self.env.now):
            self._end(key)
        self._schedule(cell)
        self._look()

    def _deadline(self, _event: object) -> None:
        """The overall time limit of the executions launched first; what is in scoring has kept it."""
        now, touched, before = self.env.now, set[Cell](), self.timed_out
        while self.deadlines and (self.deadlines[0][0] <= now + 1e-6 or not self._in_harness(self.deadlines[0][1])):
            _, key = self.deadlines.popleft()
            if self._in_harness(key):
                cell = self.running[key][0]
                if cell is None:
                    self.homeless.pop(key)
                else:
                    cell.engine.take(now, key)
                    touched.add(cell)
                self.timed_out += 1
                self._end(key)
        for cell in touched:
            self._schedule(cell)
        if self.deadlines:
            self.env.timeout(self.deadlines[0][0] - now).callbacks.append(self._deadline)
        if self.timed_out > before:
            self._look()

    def _in_harness(self, key: Key) -> bool:
        return key in self.homeless or self.running.get(key, (None, 0.0))[0] is not None

    def _end(self, key: Key) -> None:
        """The harness is over: what is left is scored."""
        launched_at = self.running[key][1]
        seconds = self.env.now - launched_at
        self.running[key] = (None, launched_at)
        self.execution_seconds += seconds
        self.gauge.execution_done(seconds)
        group = self.open[key[0]]
        group.longest = max(group.longest, seconds)
        if self.scenario.engines.evaluation_seconds > 0:
            self.to_score.append(key)
            self._score()
        else:
            self._close(key)

    def _score(self) -> None:
        """Start what evaluators have room for."""
        while self.to_score and len(self.scoring) < self.evaluator_slots:
            key = self.to_score.popleft()
            self.scoring.add(key)
            timeout = self.env.timeout(self.scenario.engines.evaluation_seconds)
            timeout.callbacks.append(lambda _, key=key: self._scored(key))

    def _scored(self, key: Key) -> None:
        self.scoring.remove(key)
        self.gauge.evaluation_done(self.scenario.engines.evaluation_seconds)
        self._close(key)
        self._score()
        self._look()

    def _close(self, key: Key) -> None:
        """Counted once; the last of a group makes it ready."""
        del self.running[key]
        self.finished += 1
        group = self.open[key[0]]
        group.left -= 1
        group.weight += self._work(key).weight
        if group.left:
            return
        self.queries += 1
        self.query_seconds += group.longest
        self.long_queries += group.longest >= LONG_SECONDS
        told = self.scenario
        if wait := max(told.training.admission_seconds, told.engines.backlog_seconds - self.env.now):
            self.env.timeout(wait).callbacks.append(lambda _: self._admitted(key[0]))
        else:
            self._ready(key[0])

    def _admitted(self, index: int) -> None:
        self._ready(index)
        self._look()

    def _ready(self, index: int) -> None:
        group = self.open.pop(index)
        size = len(self.workload.group(index))
        told, cells = self.scenario.training, len(self.cells)
        seconds = told.step_seconds * cells / self.scenario.groups_per_step * group.weight / size
        scale = self.gauge.phase(self._step_of(index)).training_scale
        self.ready.append(ReadyGroup(index, group.version, seconds * scale, self.env.now, self.workload.cut(index)))

"""One simulated run: events change the books, the policy is asked after each of them, exactly as the Scheduler does.

Decisions come from `workflows.policy` alone. Deterministic: the same scenario, variant and workload give the same
outcome.
"""

from infra.simulator.executions import Cell, Executions
from infra.simulator.outcome import Outcome, StepOutcome, Trace
from infra.simulator.scenario import Scenario, Variant
from infra.simulator.trainer import Batch, Trainer
from infra.simulator.workload import Drawn, Workload
from workflows.messages.errors import Permanent
from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy import registry
from workflows.policy.component import Component, Plan
from workflows.policy.dispatch import top_up
from workflows.policy.memory import Memory
from workflows.policy.staleness import expected_staleness
from workflows.policy.state import BatchView, CellView, Decision, PolicyState, Verdict

IDLE_LOOKS = 1000
"""Regular looks at a pipeline in which nothing runs, before it is called stuck."""
WARM_UP = 0.25
"""Share of the steps before staleness is counted: the first groups have nothing to be stale against."""


class SimulationStuck(Permanent):
    """Nothing can happen any more and the steps are not done."""


class Simulation(Executions):
    """`run()` gives the outcome; `trace` then holds what pictures need."""

    def __init__(self, scenario: Scenario, variant: Variant, workload: Workload | None = None) -> None:
        self.variant, self.settled = variant, scenario.settled(variant)
        training = scenario.training
        drawn = Drawn(
            scenario.durations,
            scenario.executions_per_group,
            scenario.seed,
            follows_duration=training.follows_duration,
        )
        super().__init__(scenario, self.settled.cells, workload or drawn)
        self.trainer = Trainer(
            self.env,
            self.ready,
            streaming=variant.streaming,
            claims=variant.shares == "claimed",
            micro_steps=training.micro_steps_per_group,
            update_seconds=training.update_seconds,
            pickup_seconds=training.pickup_seconds,
            claim_seconds=training.claim_seconds,
            on_commit=self._committed,
        )
        self.trainer.on_pickup = self._look
        self.trace = Trace()
        self.version = self.step = self.burst_step = self.groups = 0
        self.memory = Memory()
        self.recheck_at: float | None = None
        self.returning = False
        self.idle_looks = 0
        self.steps: list[StepOutcome] = []
        self.moves = self.returns = 0
        self.training_seconds = self.rollout_slot_seconds = 0.0
        self.over = self.env.event()
        self._views: tuple[CellView, ...] = ()

    # --- bursts and steps

    def run(self) -> Outcome:
        """Simulate until the last step. Raises SimulationStuck when it cannot be reached."""
        for cell in self.cells:
            self.trace.roles.append((0.0, cell.index, cell.role.value))
        self._open_burst()
        if self.variant.policy == "throughput":
            self._sample()
        try:
            self.env.run(until=self.over)
        except RuntimeError as error:  # no event is left
            raise self._stuck() from error
        for cell in self.cells:
            self._account(cell)
        return self._outcome()

    def _stuck(self) -> SimulationStuck:
        state = self._state().model_dump(mode="json", exclude={"components"})
        return SimulationStuck(f"{self.variant.label}: step {self.step}, {self.env.now:.0f} s, {state}")

    def _open_burst(self) -> None:
        per_step = self.scenario.groups_per_step
        quota = round((self.settled.carry_over + self.settled.burst_steps) * per_step)
        quota = min(quota, (self.scenario.steps - self.step) * per_step)
        before = len(self.queue)
        for _ in range(top_up(quota, len(self.open) + len(self.ready))):
            self._dispatch(self.groups, self.version)
            self.groups += 1
        self._order(len(self.queue) - before)
        self.burst_step, self.returning = 0, False
        self.gauge.dispatched(self.dispatched - self.finished)
        self._open_batch(self.scenario.transitions.first_batch_seconds)
        self._look()

    def _open_batch(self, wait: float) -> None:
        if wait:
            self._at(self.env.now + wait, self._batch_opens)
        else:
            self.trainer.open(self.scenario.groups_per_step)

    def _batch_opens(self) -> None:
        self.trainer.open(self.scenario.groups_per_step)
        self._look()

    def _committed(self, batch: Batch) -> None:
        """An update is done: the next step, or the end of the burst."""
        now = self.env.now
        ages = [self.version - group.version for group in batch.groups]
        self.steps.append(
            StepOutcome(
                step=self.step,
                opened_at=batch.opened_at,
                last_ready_at=max(group.ready_at for group in batch.groups),
                committed_at=now,
                staleness=sum(ages) / len(ages),
            )
        )
        self.gauge.batch_done(len(batch.groups), sum(sum(times) for times in batch.done.values()), len(self.running))
        self.version += 1
        self.step += 1
        self.burst_step += 1
        if self.step >= self.scenario.steps:
            self.over.succeed()
        elif self.burst_step < self.settled.burst_steps:
            self._open_batch(self.scenario.training.opening_seconds)
            self._look()
        else:
            self._end_burst()

    def _end_burst(self) -> None:
        """Cells return as the policy says; once they serve, the next burst dispatches."""
        per_step, size = self.scenario.groups_per_step, self.scenario.executions_per_group
        quota = round((self.settled.carry_over + self.settled.burst_steps) * per_step)
        dispatch = top_up(quota, len(self.open) + len(self.ready)) * size
        stay = registry.at_burst_end(self.variant.policy, self._state(), dispatch)
        back = [cell for cell in self.cells if cell.role is CellRole.TRAINING and cell.index not in stay]
        for cell in back:
            self._to_rollout(cell)
        told = self.scenario.transitions
        self.returning = True
        wait = max(told.publish_seconds, told.to_rollout_seconds if back else 0.0) + told.boundary_seconds
        self._at(self.env.now + wait, self._next_burst)

    def _next_burst(self) -> None:
        """Dispatch once no cell is on its way any more."""
        if any(cell.role in (CellRole.TO_TRAINING, CellRole.TO_ROLLOUT) for cell in self.cells):
            self._at(self.env.now + 1.0, self._next_burst)
        else:
            self._open_burst()

    # --- decisions and moves

    def _look(self) -> None:
        """After an event: launch what fits, let training go on, ask the policy."""
        self._launch()
        self.trainer.work(may_start=self._may_start())
        if self.trainer.batch is not None:
            self._decide()

    def _may_start(self) -> bool:
        """Without streaming a batch waits for cells that are on their way, and a shuffled burst for all its groups."""
        if self.variant.streaming:
            return True
        if any(cell.role is CellRole.TO_TRAINING for cell in self.cells):
            return False
        return not self.variant.shuffle or len(self.ready) >= self._burst_needed()

    def _burst_needed(self) -> int:
        batch = self.trainer.batch
        later = min(self.settled.burst_steps - self.burst_step, self.scenario.steps - self.step) - 1
        return (batch.needed if batch else 0) + max(0, later) * self.scenario.groups_per_step

    def _decide(self) -> None:
        if self.env.now < self.scenario.engines.backlog_seconds:
            self._recheck(self.scenario.engines.backlog_seconds - self.env.now)
            return
        state = self._state()
        decision, self.memory = registry.decide(self.variant.policy, state, self.memory)
        self.gauge.taken()
        self.trace.levels.append((self.env.now, self.dispatched - self.finished, state.capacity))
        if decision.verdict is Verdict.MOVE:
            self._carry_out(decision)
        elif decision.recheck_seconds is not None:
            self._recheck(decision.recheck_seconds)

    def _recheck(self, seconds: float) -> None:
        at = self.env.now + seconds
        if self.recheck_at is None or at < self.recheck_at - 1e-9 or self.recheck_at <= self.env.now:
            self.recheck_at = at
            self._at(at, self._look)

    def _carry_out(self, decision: Decision) -> None:
        self.trace.decisions.append((self.env.now, decision.reason.value, decision.detail))
        self.moves += 1
        if decision.plan is not None and decision.cell is None:
            self._at(self.env.now + decision.plan.migration_seconds, self._shift_slots, decision.plan)
        movers = [self.cells[index] for index in decision.movers]
        if decision.direction is Direction.TO_TRAINING:
            for cell in movers:
                self._set_role(cell, CellRole.TO_TRAINING)
            for cell in movers:
                self._reroute(cell)
                self._at(self.env.now + self.scenario.transitions.to_training_seconds, self._trains, cell)
        else:
            for cell in movers:
                self._to_rollout(cell)
        self._launch()

    def _shift_slots(self, plan: Plan) -> None:
        """Processor slots are created on one side, then given up on the other."""
        units = plan.units if plan.receiver is Component.EVALUATOR else -plan.units
        self.evaluator_slots += units
        self.harness_slots -= units
        self._score()
        self._look()

    def _trains(self, cell: Cell) -> None:
        self._set_role(cell, CellRole.TRAINING)
        if self.returning and self.trainer.batch is None:  # its burst ended while it was on its way
            self._to_rollout(cell)
            return
        if wait := self.scenario.transitions.join_seconds:
            self._at(self.env.now + wait, self._joins, cell, self.env.now)
            self._look()
        else:
            self._joins(cell, self.env.now)

    def _joins(self, cell: Cell, since: float) -> None:
        """The cell may claim, if it has stayed since its change of role."""
        if cell.role is CellRole.TRAINING and cell.since == since:
            self.trainer.join(cell.index)
            self._look()

    def _to_rollout(self, cell: Cell) -> None:
        if cell.index in self.trainer.cells:
            self.trainer.leave(cell.index)
        self.returns += 1
        self._set_role(cell, CellRole.TO_ROLLOUT)
        self._at(self.env.now + self.scenario.transitions.to_rollout_seconds, self._serves, cell)

    def _serves(self, cell: Cell) -> None:
        self._set_role(cell, CellRole.ROLLOUT)
        self._house()
        self._look()

    def _set_role(self, cell: Cell, role: CellRole) -> None:
        self._account(cell)
        cell.role = role
        self._views = ()
        self.trace.roles.append((self.env.now, cell.index, role.value))

    def _account(self, cell: Cell) -> None:
        """Add the time since the cell's last change to its role."""
        passed = self.env.now - cell.since
        if cell.role is CellRole.TRAINING:
            self.training_seconds += passed
        elif cell.role is CellRole.ROLLOUT:
            self.rollout_slot_seconds += passed * cell.engine.slots
        cell.since = self.env.now

    # --- what the policy sees

    def _state(self) -> PolicyState:
        if not self._views:
            self._views = tuple(
                CellView(index=c.index, role=c.role, slots=c.engine.slots, serving=c.role is CellRole.ROLLOUT)
                for c in self.cells
            )
        told, batch = self.scenario, self.trainer.batch
        components = self.gauge.components(self) if self.variant.policy == "throughput" else ()
        # Not validated: these are our own numbers, and there are hundreds of thousands of looks.
        return PolicyState.model_construct(
            now=self.env.now,
            dispatched=self.dispatched,
            launched=self.launched,
            finished=self.finished,
            cells=self._views,
            standalone_slots=told.engines.standalone_slots,
            ready_unassigned=len(self.ready),
            batch=BatchView.model_construct(batch="b", needed=batch.needed) if batch is not None else None,
            groups_per_step=told.groups_per_step,
            supply_fraction=told.supply_fraction,
            hold_seconds=told.hold_seconds,
            move_under_way=any(view.role is CellRole.TO_TRAINING for view in self._views),
            streaming=self.variant.streaming,
            burst_needed=self._burst_needed() if self._whole_burst else None,
            split=self.settled.split,
            bounds=told.bounds,
            components=components,
            throughput=told.throughput,
        )

    @property
    def _whole_burst(self) -> bool:
        return self.variant.shuffle or self.variant.policy == "colocate"

    def _sample(self) -> None:
        """The pipeline is looked at regularly, events or not; not for ever, when nothing else happens any more."""
        busy = self.running or any(self.trainer.cells.values()) or (self.trainer.batch and self.trainer.batch.updating)
        self.idle_looks = 0 if busy or self.returning else self.idle_looks + 1
        if self.idle_looks > IDLE_LOOKS:
            raise self._stuck()
        self._at(self.env.now + self.scenario.telemetry.sample_seconds, self._sample)
        self._look()

    def _at(self, moment: float, action, *arguments) -> None:
        timeout = self.env.timeout(max(0.0, moment - self.env.now))
        timeout.callbacks.append(lambda _: action(*arguments))

    # --- what came out

    def _outcome(self) -> Outcome:
        first, last = int(WARM_UP * self.scenario.steps), self.scenario.steps - self._uncarried()
        counted = [step.staleness for step in self.steps[first:last]] or [step.staleness for step in self.steps]
        cell_seconds = self.env.now * len(self.cells)
        engine_seconds = sum(cell.engine.busy_slot_seconds for cell in self.cells)
        exposed = sum(step.exposed_seconds for step in self.steps)
        return Outcome(
            label=self.variant.label,
            policy=self.variant.policy,
            seconds=self.env.now,
            steps=tuple(self.steps),
            executions=self.finished,
            timed_out=self.timed_out,
            mean_execution_seconds=self.execution_seconds / max(1, self.finished),
            mean_query_seconds=self.query_seconds / max(1, self.queries),
            long_query_share=self.long_queries / max(1, self.queries),
            staleness=sum(counted) / len(counted),
            expected_staleness=expected_staleness(self.settled.carry_over, self.settled.burst_steps),
            training_idle_share=1 - self.trainer.busy_seconds / max(self.training_seconds, 1e-9),
            training_share=self.training_seconds / cell_seconds,
            rollout_idle_share=1 - engine_seconds / max(self.rollout_slot_seconds, 1e-9),
            exposed_share=exposed / self.env.now,
            slack=1 - self.trainer.busy_seconds / cell_seconds,
            moves=self.moves,
            returns=self.returns,
            rerouted=self.rerouted,
            split=self.settled.split,
        )

    def _uncarried(self) -> int:
        """Steps at the end whose groups were topped up only to what was still to be consumed."""
        return min(self.scenario.steps // 2, int(self.settled.carry_over + 0.999) + self.settled.burst_steps)


def simulate(scenario: Scenario, variant: Variant, workload: Workload | None = None) -> Outcome:
    """The outcome of one variant."""
    return Simulation(scenario, variant, workload).run()

"""Who serves and who trains: the policy is asked, its answer carried out, what came of it judged.

When moving has become a risk (moves that fail or are regretted, a predictor that is wrong, stale telemetry) the last
valid allocation is frozen, and an operator decides when to go on: `workflows.policy.safe_mode`.
"""

from collections.abc import Mapping, Sequence

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows.books import CellMove, Judgement, PendingMove
from workflows.errands import Errands
from workflows.messages import ids
from workflows.messages.burst import BurstSpec, Purpose
from workflows.messages.fleet import CellReport, CellRole
from workflows.messages.scheduling import EndBurst
from workflows.messages.transition import Direction, MoveCell
from workflows.parking import failure_text
from workflows.policy import registry
from workflows.policy.component import Plan
from workflows.policy.dispatch import top_up
from workflows.policy.safe_mode import MoveOutcome, SafeMode, after_allocation, after_move, after_telemetry
from workflows.policy.state import Decision, PolicyState, Verdict

STAY_SECONDS = 60.0
"""How long cells that stayed for the next burst wait for it."""

ON_THE_WAY: Mapping[Direction, CellRole] = {
    Direction.TO_TRAINING: CellRole.TO_TRAINING,
    Direction.TO_ROLLOUT: CellRole.TO_ROLLOUT,
    Direction.RETIRE: CellRole.RETIRING,
}
ARRIVED: Mapping[Direction, CellRole] = {
    Direction.TO_TRAINING: CellRole.TRAINING,
    Direction.TO_ROLLOUT: CellRole.ROLLOUT,
    Direction.RETIRE: CellRole.RETIRED,
}


class Allocation(Errands):
    """Decisions of the Scheduler."""

    def _decide(self) -> float | None:
        """Ask the policy and do what it says; returns seconds after which time alone may change the answer."""
        burst = self.burst
        if burst is None or burst.purpose is not Purpose.TRAIN or self.ending or self._given_up() == burst.name:
            self.memory = self.memory.model_copy(update={"hold": None})
            self.telemetry = self.telemetry.expected_from(None)
            return None
        settings, now = self._policy(), workflow.time()
        watched = settings.name == "throughput"
        self.telemetry = self.telemetry.expected_from(now if watched else None)
        self._enter(after_telemetry(self.mode, self.telemetry.age_seconds(now), settings.safe_mode, now))
        state = self._policy_state()
        self.mode = after_allocation(self.mode, state)
        decision, self.memory = registry.decide(settings.name, state, self.memory, self.mode)
        self.telemetry = self.telemetry.taken()
        if decision.verdict is Verdict.MOVE:
            self._carry_out(decision, state)
            return None
        self._explain(decision, state)
        cooldown = self.cooldown_until - now
        recheck = decision.recheck_seconds or (cooldown if cooldown > 0 else None)
        if not watched:
            return recheck
        sample = self._look_at_pipeline(settings.throughput.sample_seconds)
        return sample if recheck is None else min(recheck, sample)

    def _explain(self, decision: Decision, state: PolicyState) -> None:
        """To the ledger: every refusal whose reason has changed."""
        key = f"{decision.verdict}/{decision.cell}/{decision.reason}"
        if key != self.told:
            self._note_decision(decision.verdict.value, decision, state)
        self.told = key

    def _look_at_pipeline(self, every_seconds: float) -> float:
        """Measure when it is time; returns seconds to the next time."""
        now = workflow.time()
        if self.measuring:
            return every_seconds
        if now >= self.next_sample:
            self.measuring, self.next_sample = True, now + every_seconds
            self._spawn(self._measure(), "measure the pipeline")
        return max(0.1, self.next_sample - now)

    # --- moves

    def _carry_out(self, decision: Decision, state: PolicyState) -> None:
        back = decision.direction is Direction.TO_ROLLOUT
        token = self._note_decision("return" if back and decision.movers else "move", decision, state)
        self.told = ""
        gain, before = decision.expected_gain_seconds, self.telemetry.iteration_seconds
        if decision.plan is not None and not decision.movers:
            self._share_out(decision.plan)
            if gain is not None and before is not None:
                self._judge_later(token, gain, before)
            return
        self._go(decision.movers, decision.direction, token, gain, before)

    def _go(
        self,
        cells: Sequence[int],
        direction: Direction,
        token: str,
        gain: float | None = None,
        before: float | None = None,
    ) -> None:
        """Send cells on their way, all of them gone before the first one is asked who takes over from it."""
        for cell in cells:
            self.cells.set_role(cell, ON_THE_WAY[direction])
        moves = tuple(self._move(cell, direction, ON_THE_WAY[direction]) for cell in cells)
        self.pending.append(
            PendingMove(
                token=token,
                direction=direction,
                cells=moves,
                started_at=workflow.time(),
                gain_seconds=gain,
                before_seconds=before,
            )
        )

    def _move(self, cell: int, direction: Direction, role: CellRole) -> CellMove:
        """Ask a cell to change; its capacity is gone from now on, and what it accumulates does not count any more."""
        leaves = direction in (Direction.TO_TRAINING, Direction.RETIRE)
        peers = self.cells.peers(cell, self.weights.version) if leaves else {}
        if direction in (Direction.TO_ROLLOUT, Direction.RETIRE):
            self._tell_batch("member_left", self.cells.member(cell))
        self.cells.set_role(cell, role)
        move = MoveCell(
            move=self._next_move(),
            boot_epoch=self.cells.entries[cell].boot_epoch,
            direction=direction,
            weights=self.weights,
            peers=peers,
            kv_handoff=self.spec.kv_handoff,
            publish="recompute" if self.burst is None else self.burst.publish,
            leaves_at=self.cells.entries[cell].leaves_at if direction is Direction.RETIRE else None,
            led=self.cells.entries[cell].led,
        )
        self._spawn(self._send_move(cell, move), f"move cell {cell}")
        return CellMove(cell=cell, move=move.move, boot_epoch=move.boot_epoch)

    def _next_move(self) -> str:
        """The id of another move."""
        self.moves += 1
        return f"{self.run_name}/{self.moves}"

    async def _send_move(self, cell: int, move: MoveCell) -> None:
        handle = workflow.get_external_workflow_handle(ids.cell_workflow_id(self.run_name, cell))
        try:
            await handle.signal("move", move)
        except ApplicationError as error:
            # Its workflow is gone. It is nobody's to wait for until it is started anew and reports; one that was to
            # leave the fleet has nothing left to do for that.
            if cell not in self.cells.entries:
                return  # it has left the fleet meanwhile
            role = CellRole.RETIRED if move.direction is Direction.RETIRE else CellRole.LOST
            report = CellReport(
                cell=cell,
                boot_epoch=move.boot_epoch,
                role=role,
                move=move.move,
                reason=f"its workflow is gone: {failure_text(error)}"[:500],
            )
            self.cells.set_role(cell, role)
            self._arrived(report)
            if role is CellRole.RETIRED:
                self._left(report)
            else:
                self._note("alarm", cell, (f"lost: {failure_text(error)}",))

    def _share_out(self, plan: Plan) -> None:
        """Processor slots change sides; the harness host takes on the new ones before it gives up the old ones."""
        now = self._slots()
        by = {plan.receiver.value: plan.units, plan.donor.value: -plan.units}
        shares = {name: getattr(now, name) + units for name, units in by.items()}
        self.slots = now.model_copy(update={**shares, "change": now.change + 1})
        self._spawn(self._share_slots(), "share out processor slots")

    def _arrived(self, report: CellReport) -> None:
        """What a cell's report means for the moves that are being carried out."""
        for index, pending in enumerate(self.pending):
            asked = next((move for move in pending.cells if move.cell == report.cell), None)
            if asked is None or (report.move != asked.move and report.boot_epoch <= asked.boot_epoch):
                continue
            left = tuple(move for move in pending.cells if move.cell != report.cell)
            done = report.move == asked.move and report.role is ARRIVED[pending.direction]
            pending = pending.model_copy(update={"cells": left, "failed": pending.failed or not done})
            self.pending[index] = pending
            if not left:
                del self.pending[index]
                self._finished(pending)
            return

    def _asked(self, cell: int) -> str:
        """The newest move that this cell was asked to make and has not reported on; empty: none."""
        asked = [move.move for pending in self.pending for move in pending.cells if move.cell == cell]
        return asked[-1] if asked else ""

    def _left(self, report: CellReport) -> None:
        """A cell has left the fleet for good; nothing that it was asked for is waited for any more."""
        self.cells.remove(report.cell)
        self.reclaimed.add(report.cell)
        self.pending = without(self.pending, report.cell)
        self._note("fleet", report.cell, ("left", f"{len(self.cells.entries)} cells stay; {report.reason}".strip("; ")))

    def _finished(self, pending: PendingMove) -> None:
        """Every cell of a decision has arrived, or has failed to."""
        now = workflow.time()
        if not pending.failed:
            self.telemetry = self.telemetry.migrated(pending.direction, now - pending.started_at)
            if pending.gain_seconds is not None and pending.before_seconds is not None:
                self._judge_later(pending.token, pending.gain_seconds, pending.before_seconds)
        elif pending.direction is Direction.RETIRE:
            return  # it leaves at its deadline all the same; that says nothing about the moves of the policy
        self._enter(after_move(self.mode, MoveOutcome(done=not pending.failed), self._policy().safe_mode, now))

    def _judge_later(self, token: str, gain: float, before: float) -> None:
        self.judging.append(Judgement(token=token, gain_seconds=gain, before_seconds=before))

    def _iterated(self, groups: int, cell_seconds: float) -> None:
        """An update is committed: windows close, and moves whose first whole iteration this was are judged."""
        now = workflow.time()
        self.telemetry = self.telemetry.committed(now, groups, cell_seconds)
        iteration, waiting = self.telemetry.iteration_seconds, list[Judgement]()
        for judged in self.judging:
            if not judged.whole or iteration is None:
                waiting.append(judged.model_copy(update={"whole": True}))
                continue
            realised = judged.before_seconds - iteration
            self._note(
                "outcome",
                None,
                ("realised", f"{judged.before_seconds:.1f} s an iteration before the move, {iteration:.1f} s after it"),
                policy=self._policy().name,
                expected_gain_seconds=judged.gain_seconds,
                realised_gain_seconds=realised,
                about=judged.token,
            )
            outcome = MoveOutcome(done=True, predicted_gain_seconds=judged.gain_seconds, realised_gain_seconds=realised)
            self._enter(after_move(self.mode, outcome, self._policy().safe_mode, now))
        self.judging = waiting

    def _enter(self, mode: SafeMode) -> None:
        """The new mode; entering safe mode is told."""
        entered = mode.frozen and not self.mode.frozen
        self.mode = mode
        if entered:
            self._note("safe_mode", None, ("entered", f"{mode.cause}: {mode.detail}"))

    # --- the ends of bursts

    def _publish(self, ending: EndBurst) -> None:
        """Adopt the burst's version; training cells return, serving cells load it, some stay as the policy says."""
        changed = ending.weights.version != self.weights.version
        self.weights, self.committed = ending.weights, None
        self._note("publish", None, (f"version {self.weights.version}", "changed" if changed else "unchanged"))
        cells = sorted(self.cells.entries.items())
        self.staying, self.stay_until = self._stayers(), workflow.time() + STAY_SECONDS
        for cell, entry in cells:
            if entry.role is CellRole.TRAINING:
                self._return(cell, "burst ended")
            elif changed:
                self._move(cell, Direction.PUBLISH, entry.role)

    def _stayers(self) -> tuple[int, ...]:
        """The cells that train on for the burst that follows; the core is told of either way, with the reason."""
        burst = self._followed()
        if burst is None:
            return ()
        stay, reasons, state = self._at_end_of(burst)
        self._note_stay(stay, reasons, state)
        core = self.cells.core
        if core in self.cells.in_role(CellRole.TRAINING) and core not in stay and not self._leaves_from_training(core):
            self._back(core, reasons, state)
        return stay

    def _keep_late(self) -> None:
        """Cells that came into training after their burst had ended stay if the policy keeps what it moved: a move that
        was decided at the last commit is worth no less for that."""
        burst, late = self._followed(), set(self.cells.in_role(CellRole.TRAINING)) - set(self.staying)
        if burst is None or not late:
            return
        stay, reasons, state = self._at_end_of(burst)
        kept = tuple(sorted(late.intersection(stay)))
        self._note_stay(kept, reasons, state)
        self.staying = (*self.staying, *kept)

    def _followed(self) -> BurstSpec | None:
        """The burst, if its cells may train on for the one that follows."""
        burst = self.burst
        return burst if burst is not None and burst.follows and not self.burst_cancelled else None

    def _at_end_of(self, burst: BurstSpec) -> tuple[tuple[int, ...], tuple[str, str], PolicyState]:
        """Who trains on by the policy, why they and no others, and in which state."""
        name, state = self._policy().name, self._policy_state()
        dispatch = top_up(burst.quota, self.accounts.outstanding()) * burst.executions_per_group
        stay = registry.at_burst_end(name, state, dispatch, self.mode)
        return stay, registry.why_at_burst_end(name, state, dispatch, self.mode), state

    def _note_stay(self, cells: Sequence[int], reasons: tuple[str, str], state: PolicyState) -> None:
        for cell in cells:
            self._note("stay", cell, reasons, state, policy=self._policy().name)

    def _return(self, cell: int, reason: str) -> None:
        """Send a cell in training back to rollout, unless it stays (or is on its way already)."""
        stays = cell in self.staying or self._leaves_from_training(cell)
        if self.cells.role(cell) is CellRole.TRAINING and not stays:
            self._back(cell, (reason,))

    def _leaves_from_training(self, cell: int) -> bool:
        """Whether the core is being handed over, or was, and leaves the fleet then: it would serve for a moment only to
        be drained again. It returns as any other where nobody can take over."""
        entry, over = self.cells.entries[cell], self.hand_over
        if entry.leaves_at is None:
            return False
        if cell != self.cells.core:
            return entry.led
        if over is not None and over.heir is not None:
            return True
        failed = over.failed if over is not None else ()
        return not self.cells.core_stays and any(heir not in failed for heir in self.cells.heirs())

    def _back(self, cell: int, reasons: tuple[str, ...], state: PolicyState | None = None) -> None:
        token = self._note("return", cell, reasons, state, direction=Direction.TO_ROLLOUT)
        self._go([cell], Direction.TO_ROLLOUT, token)

    def _send_idle_home(self) -> None:
        """Without a training burst nobody trains: cells that got there late, or stayed for nothing, return."""
        if self.opening is not None or (self.burst is not None and self.burst.purpose is Purpose.TRAIN):
            return
        waits = workflow.time() < self.stay_until
        for cell in self.cells.in_role(CellRole.TRAINING):
            if not (waits and cell in self.staying) and not self._leaves_from_training(cell):
                self._back(cell, ("no training burst is open",))


def without(moves: Sequence[PendingMove], cell: int) -> list[PendingMove]:
    """What is still being carried out when this cell is gone."""
    left = [
        pending.model_copy(update={"cells": tuple(move for move in pending.cells if move.cell != cell)})
        for pending in moves
    ]
    return [pending for pending in left if pending.cells]

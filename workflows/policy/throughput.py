"""The `throughput` policy: give a unit only where it raises the pace of the slowest component (a max-min problem).

    stage 1   a component donates when most of its units have been nearly idle without a break for some seconds
    stage 2   for a few candidate releases, predict the slowest component's time for an iteration, before and after;
              carry out the best plan only if it saves more than it costs to migrate, and more than noise

The prediction stands on throughput models re-calibrated from what was measured since the last look. The core never
leaves training; cells join in ascending order and go back in descending order. The search looks at candidates times
components, whatever the number of GPUs.
"""

from math import hypot

from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy import whole_pool
from workflows.policy.answers import core_absence, move, refuse
from workflows.policy.bounds import training_count
from workflows.policy.calibration import recalibrated
from workflows.policy.component import CELLS, Component, ComponentView, Plan
from workflows.policy.fixed_split import alone
from workflows.policy.memory import Memory
from workflows.policy.migration import actions_of, migration_seconds
from workflows.policy.state import Decision, PolicyState, Reason, Verdict


def decide(state: PolicyState, memory: Memory) -> tuple[Decision, Memory]:
    """The best reallocation that pays, or why there is none."""
    if alone(state):
        decision, memory = whole_pool.decide(state, memory)
        return decision.model_copy(update={"detail": f"a single cell has no split; {decision.detail}"}), memory
    memory = _learned(state, memory)
    absence = core_absence(state)
    if absence is not None:
        return absence, memory
    if state.move_under_way or any(cell.role is CellRole.TO_ROLLOUT for cell in state.cells):
        return refuse(None, Reason.MOVE_UNDER_WAY, "a transition is under way"), memory
    joiner = _missing_trainer(state)
    if joiner is not None:
        return move(state, [joiner], Reason.BOUNDS, "training holds at least the core"), memory
    settled = _settling_seconds(state, memory)
    if settled > 0:
        detail = f"{settled:.1f} s until the last move has shown its effect"
        return refuse(None, Reason.SETTLING, detail, recheck_seconds=settled), memory
    if not _measured(state, memory):
        least = state.throughput.least_windows
        return refuse(None, Reason.SETTLING, f"fewer than {least} measurements since the last change"), memory
    donors = [view for view in state.components if _donates(state, memory, view)]
    if not donors:
        return _wait_for_donor(state, memory), memory
    plan = best_plan(state, memory, donors)
    if plan is None or plan.gain_seconds <= _least_gain(state, memory, plan):
        return _no_gain(donors, plan), memory
    stale = {name: model.model_copy(update={"fresh": 0}) for name, model in memory.calibrations.items()}
    after = {"moved_at": state.now, "low_since": {}, "calibrations": stale}
    return _carried_out(state, plan), memory.model_copy(update=after)


def at_burst_end(state: PolicyState, next_dispatch: int) -> tuple[int, ...]:
    """The split is kept: what it should be does not depend on bursts."""
    if alone(state):
        return ()
    return tuple(cell.index for cell in state.cells if cell.role is CellRole.TRAINING)


def best_plan(state: PolicyState, memory: Memory, donors: list[ComponentView]) -> Plan | None:
    """The plan with the largest gain after migration, the smallest release among equals; None without candidates."""
    models = memory.calibrations
    seconds = {view.name: models[view.name].iteration_seconds(view, view.units) for view in state.components}
    before = max(seconds.values())
    bottleneck = max(seconds, key=lambda name: seconds[name])
    best: Plan | None = None
    for donor in donors:
        for receiver in state.components:
            if receiver.name is donor.name or receiver.resource != donor.resource:
                continue
            others = [value for name, value in seconds.items() if name not in (donor.name, receiver.name)]
            for units in range(1, _releasable(state, donor, receiver) + 1):
                after = max(
                    models[donor.name].iteration_seconds(donor, donor.units - units),
                    models[receiver.name].iteration_seconds(receiver, receiver.units + units),
                    *others,
                )
                plan = Plan(
                    donor=donor.name,
                    receiver=receiver.name,
                    units=units,
                    seconds_before=before,
                    seconds_after=after,
                    migration_seconds=migration_seconds(donor, receiver),
                    bottleneck=bottleneck,
                    actions=actions_of(donor, receiver, units),
                )
                if best is None or _worth(plan) > _worth(best) + 1e-9:
                    best = plan
    return best


def _least_gain(state: PolicyState, memory: Memory, plan: Plan) -> float:
    """Seconds an iteration must get shorter by: a margin, what the prediction may be off by, and the migration."""
    told = state.throughput
    error = hypot(*(memory.calibrations[name].uncertainty for name in (plan.donor, plan.receiver)))
    migration = plan.migration_seconds / told.horizon_iterations
    return (told.least_gain + told.caution * error) * plan.seconds_before + migration


def _worth(plan: Plan) -> float:
    return plan.gain_seconds - plan.migration_seconds


def _learned(state: PolicyState, memory: Memory) -> Memory:
    """The memory after looking at the components: models, and since when each one is nearly idle."""
    models = dict(memory.calibrations)
    low: dict[Component, float] = {}
    for view in state.components:
        models[view.name] = recalibrated(models.get(view.name), view)
        if _is_low(state, view):
            low[view.name] = min(memory.low_since.get(view.name, state.now), state.now)
    return memory.model_copy(update={"calibrations": models, "low_since": low})


def _is_low(state: PolicyState, view: ComponentView) -> bool:
    if not view.utilisations:
        return False
    idle = sum(share < state.throughput.low_utilisation for share in view.utilisations)
    return idle > state.throughput.low_share * len(view.utilisations)


def _donates(state: PolicyState, memory: Memory, view: ComponentView) -> bool:
    since = memory.low_since.get(view.name)
    return since is not None and state.now - since >= state.throughput.low_seconds


def _measured(state: PolicyState, memory: Memory) -> bool:
    """Every component that an iteration needs has been measured often enough since the last change."""
    needed = [view.name for view in state.components if view.items_per_iteration > 0]
    return all(memory.calibrations[name].fresh >= state.throughput.least_windows for name in needed)


def _wait_for_donor(state: PolicyState, memory: Memory) -> Decision:
    waits = [since + state.throughput.low_seconds - state.now for since in memory.low_since.values()]
    detail = f"nearly idle, not yet for long enough: {', '.join(memory.low_since)}" if waits else "no component is idle"
    return refuse(None, Reason.NO_DONOR, detail, recheck_seconds=max(min(waits), 1e-3) if waits else None)


def _settling_seconds(state: PolicyState, memory: Memory) -> float:
    """Seconds until the next plan may be made; a clock that was set back does not make it longer than it is."""
    if memory.moved_at is None or memory.moved_at > state.now:
        return 0.0
    return memory.moved_at + state.throughput.settle_seconds - state.now


def _missing_trainer(state: PolicyState) -> int | None:
    """The next cell, when fewer train than have to."""
    least = max(state.bounds.min_training_cells, 1)
    if training_count(state) >= least and state.cells[0].role is CellRole.TRAINING:
        return None
    serving = [cell.index for cell in state.cells if cell.eligible and cell.role is CellRole.ROLLOUT]
    return serving[0] if serving else None


def _releasable(state: PolicyState, donor: ComponentView, receiver: ComponentView) -> int:
    """How many units may go, by the components' own limits and by which cells can make the move."""
    most = donor.units - donor.min_units
    if receiver.max_units is not None:
        most = min(most, receiver.max_units - receiver.units)
    if donor.resource == CELLS:
        most = min(most, len(_cells_for(state, receiver.name)))
    return max(0, min(most, state.throughput.candidates))


def _cells_for(state: PolicyState, receiver: Component) -> list[int]:
    """Cells that can be given to `receiver`, in the order in which they would go."""
    if receiver is Component.TRAINING:
        return [cell.index for cell in state.cells if cell.eligible and cell.role is CellRole.ROLLOUT]
    return [cell.index for cell in state.cells if cell.role is CellRole.TRAINING and cell.index != state.core][::-1]


def _no_gain(donors: list[ComponentView], plan: Plan | None) -> Decision:
    names = ", ".join(view.name for view in donors)
    if plan is None:
        return refuse(None, Reason.NO_GAIN, f"{names} could give, but no release is possible")
    detail = f"best plan {plan.donor} -{plan.units}-> {plan.receiver} saves {plan.gain_seconds:.1f} s an iteration"
    return refuse(None, Reason.NO_GAIN, f"{detail}, migration {plan.migration_seconds:.1f} s").model_copy(
        update={"plan": plan, "bottleneck": plan.bottleneck.value, "expected_gain_seconds": plan.gain_seconds}
    )


def _carried_out(state: PolicyState, plan: Plan) -> Decision:
    what = f"{plan.units} of {plan.donor} to {plan.receiver}: iteration {plan.seconds_before:.1f} s"
    by = ", ".join(str(action) for action in plan.actions)
    detail = f"{what} -> {plan.seconds_after:.1f} s, bottleneck {plan.bottleneck}; by {by}"
    donor = next(view for view in state.components if view.name is plan.donor)
    extra = {"plan": plan, "bottleneck": plan.bottleneck.value, "expected_gain_seconds": plan.gain_seconds}
    if donor.resource != CELLS:
        decision = Decision(verdict=Verdict.MOVE, cell=None, reason=Reason.GAIN, detail=detail)
        return decision.model_copy(update=extra)
    cells = _cells_for(state, plan.receiver)[: plan.units]
    direction = Direction.TO_TRAINING if plan.receiver is Component.TRAINING else Direction.TO_ROLLOUT
    return move(state, cells, Reason.GAIN, detail, direction).model_copy(update=extra)

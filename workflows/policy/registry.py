"""The policies by name, and the one function through which the live scheduler and the simulator ask them."""

from collections.abc import Callable
from dataclasses import dataclass

from workflows.messages.fleet import CellRole
from workflows.policy import fixed_split, lending, throughput, waterlevel, whole_pool
from workflows.policy.answers import refuse
from workflows.policy.memory import Memory
from workflows.policy.safe_mode import SafeMode, explained
from workflows.policy.starvation import relief, would_starve
from workflows.policy.state import Decision, PolicyState, Reason, Verdict


@dataclass(frozen=True)
class Policy:
    """`decide` at every event; `at_burst_end` names the training cells that go on training (state and the executions
    about to be dispatched), everybody else returns to rollout."""

    decide: Callable[[PolicyState, Memory], tuple[Decision, Memory]]
    at_burst_end: Callable[[PolicyState, int], tuple[int, ...]]


def _waterlevel(state: PolicyState, memory: Memory) -> tuple[Decision, Memory]:
    decision, hold = waterlevel.decide(state, memory.hold)
    return decision, memory if hold == memory.hold else memory.model_copy(update={"hold": hold})


def _waterlevel_end(state: PolicyState, next_dispatch: int) -> tuple[int, ...]:
    """The core alone may stay. `state` is as it was when the last step was committed."""
    if state.cells[0].role is not CellRole.TRAINING:
        return ()
    return (state.core,) if _core_stays(state, next_dispatch).verdict is Verdict.MOVE else ()


def _core_stays(state: PolicyState, next_dispatch: int) -> Decision:
    return waterlevel.core_may_stay(waterlevel.after_publish(state, state.groups_per_step), next_dispatch)


POLICIES: dict[str, Policy] = {
    "waterlevel": Policy(_waterlevel, _waterlevel_end),
    "throughput": Policy(throughput.decide, throughput.at_burst_end),
    "async": Policy(fixed_split.decide, fixed_split.at_burst_end),
    "colocate": Policy(whole_pool.decide, whole_pool.at_burst_end),
    "lending": Policy(lending.decide, lending.at_burst_end),
}

_NORMAL = SafeMode()


def decide(name: str, state: PolicyState, memory: Memory, mode: SafeMode = _NORMAL) -> tuple[Decision, Memory]:
    """What policy `name` answers on `state`, and what it wants to remember.

    Starving executions come first, then safe mode, then the policy. Nobody is sent to training who would have to come
    back at once. Raises KeyError for an unknown name.
    """
    policy = POLICIES[name]
    rescue = relief(state)
    if rescue is not None:
        return rescue, memory
    if mode.frozen:
        decision, after = fixed_split.decide(state.model_copy(update={"split": mode.split}), memory)
        decision = explained(mode, decision)
    else:
        decision, after = policy.decide(state, memory)
    if would_starve(state, decision):
        detail = f"w {state.waterlevel} and no other engine: training would wait for executions that nobody serves"
        return refuse(decision.cell, Reason.STARVED, detail), after
    return decision, after


def at_burst_end(name: str, state: PolicyState, next_dispatch: int, mode: SafeMode = _NORMAL) -> tuple[int, ...]:
    """Training cells that go on training after a burst; in safe mode the frozen allocation."""
    if mode.frozen:
        return fixed_split.at_burst_end(state.model_copy(update={"split": mode.split}), next_dispatch)
    return POLICIES[name].at_burst_end(state, next_dispatch)


def why_at_burst_end(name: str, state: PolicyState, next_dispatch: int, mode: SafeMode = _NORMAL) -> tuple[str, str]:
    """For the ledger: the reason of what `at_burst_end` answers, and in words."""
    if mode.frozen:
        return Reason.SAFE_MODE.value, f"{mode.cause}: {mode.detail}"
    if name == "waterlevel" and state.cells[0].role is CellRole.TRAINING:
        decision = _core_stays(state, next_dispatch)
        return decision.reason.value, decision.detail
    if at_burst_end(name, state, next_dispatch):
        return Reason.SPLIT.value, f"{name}: the training side goes on training"
    return Reason.POOL.value, f"{name}: everybody serves between bursts"

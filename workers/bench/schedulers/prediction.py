"""The simulator fed with the same executions: what it says each policy takes.

Two ways. From the plan alone, before anything has run: the best split of a fixed one is searched with it. From one
recorded run (`gyre simulate --from-run` reads it the same way): executions, training times, role changes and gaps are
those that were measured there, and every policy's time is predicted from them.
"""

from collections.abc import Sequence

from activities.trajectories.cutting import share_out
from infra.simulator.compare import at_best_split
from infra.simulator.recorded import RecordedRun
from infra.simulator.run import simulate
from infra.simulator.scenario import Durations, Engines, Scenario, Telemetry, TrainingModel, Transitions, Variant
from infra.simulator.workload import Recorded, Work
from workers.bench.schedulers.stage import TOKEN_BUDGET
from workers.bench.schedulers.workload import Workload
from workflows.messages.policies import PolicySettings

MOVE_SECONDS = 0.7
"""What a role change is taken to cost before one was measured."""


def variant_of(policy: PolicySettings, *, split: int | None = None) -> Variant:
    return Variant(
        label=policy.name, policy=policy.name, streaming=policy.streaming, split=split or policy.split, shares="claimed"
    )


def planned(workload: Workload) -> tuple[Scenario, Recorded]:
    """The workload as it would go if the system added nothing but role changes."""
    rate = workload.tokens_per_second
    training = [workload.training_seconds(group) for group in range(len(workload.groups))]
    mean = sum(training) / len(training)
    works = [
        [Work(one.seconds(rate), 0.6, training[index] / mean) for one in group]
        for index, group in enumerate(workload.groups)
    ]
    cuts = [micro_steps([one.tokens for one in group]) for group in workload.groups]
    scenario = Scenario(
        name=workload.name,
        nodes=workload.cells,
        cells=workload.cells,
        groups_per_step=workload.groups_per_step,
        executions_per_group=workload.executions_per_group,
        steps=workload.updates,
        burst_steps=workload.steps,
        staleness=workload.staleness,
        supply_fraction=0.5,
        hold_seconds=0.0,
        durations=Durations(mean_seconds=1.0),
        engines=Engines(slots=workload.cells * workload.slots, slowdown=0.0),
        training=TrainingModel(
            step_seconds=mean * workload.groups_per_step / workload.cells,
            update_seconds=workload.update_seconds,
            micro_steps_per_group=workload.executions_per_group,
        ),
        transitions=Transitions(to_training_seconds=MOVE_SECONDS, to_rollout_seconds=MOVE_SECONDS, reroute_seconds=0.0),
    )
    return scenario, Recorded(works, cuts)


def micro_steps(tokens: Sequence[int]) -> list[int]:
    """Tokens of a group's micro-steps as the live packing cuts them, from those of its executions."""
    return [sum(tokens[index] for index in share) for share in share_out(tokens, TOKEN_BUDGET)]


def best_split(workload: Workload, policy: PolicySettings) -> int:
    """The split with which the plan takes least time; every one is tried."""
    scenario, works = planned(workload)
    return at_best_split(under(scenario, policy), variant_of(policy), works).outcome.split


def predicted_seconds(reference: RecordedRun, policy: PolicySettings) -> float:
    """What the policy would have taken with the executions of `reference`."""
    return simulate(under(reference.scenario, policy), variant_of(policy), reference.workload).seconds


def under(scenario: Scenario, policy: PolicySettings) -> Scenario:
    """The scenario with the policy's own settings."""
    return scenario.model_copy(
        update={
            "supply_fraction": policy.supply_fraction,
            "hold_seconds": policy.hold_seconds,
            "throughput": policy.throughput,
            "telemetry": Telemetry(sample_seconds=policy.throughput.sample_seconds),
        }
    )

"""Faults in scores and group statistics (invariants 5 and 8)."""

from infra.records import schema
from tests.infra.audit.any_run.subjects import batch, change, change_members, group, micro_step, plants
from tests.infra.audit.recording import SyntheticRun


def victim(run: SyntheticRun):
    return run.row(schema.executions, execution=group(run)["members"][0]["execution"])


@plants("failure-rewarded")
def grader_failure_kept_its_reward(run: SyntheticRun) -> None:
    change(run, schema.executions, victim(run), outcome="evaluator_failed")


@plants("reward-invalid")
def reward_above_one(run: SyntheticRun) -> None:
    change(run, schema.executions, victim(run), reward=1.5)


@plants("reward-disagrees")
def reward_of_another_execution(run: SyntheticRun) -> None:
    change_members(run, group(run), 0, reward=0.5)


@plants("reward-disagrees")
def failed_grader_trained_as_zero(run: SyntheticRun) -> None:
    """The grader never gave a reward; its group took 0 and made an advantage of it."""
    place = next(place for place, member in enumerate(group(run)["members"]) if member["left_out"] is None)
    name = group(run)["members"][place]["execution"]
    change_members(run, group(run), place, reward=0.0)
    run.change(schema.executions, {"execution": name}, outcome="evaluator_failed", reward=None)


@plants("valid-count-differs")
def failure_counted_as_valid(run: SyntheticRun) -> None:
    change(run, schema.groups, group(run), valid=group(run)["valid"] + 1)


@plants("invalid-execution-trained")
def execution_of_no_group_trained(run: SyntheticRun) -> None:
    step = micro_step(run)
    _, header = run.payload(step["batch"], step["micro_step"])
    for path in header["paths"]:
        path["execution"] = "nobody"
    run.repack(step["batch"], step["micro_step"], header=header)


@plants("advantage-differs")
def advantage_over_another_deviation(run: SyntheticRun) -> None:
    change_members(run, group(run), 0, advantage=group(run)["members"][0]["advantage"] * 1.2)


@plants("advantage-differs")
def advantages_of_another_method_than_the_bursts(run: SyntheticRun) -> None:
    settings = batch(run).get("settings") or {}
    change(run, schema.batches, batch(run), settings=settings | {"advantage": "dr_grpo"})


@plants("signal-differs")
def group_with_signal_left_out(run: SyntheticRun) -> None:
    change(run, schema.groups, group(run), no_signal="equal_rewards")


@plants("normalizer-differs")
def normalised_by_one_more(run: SyntheticRun) -> None:
    change(run, schema.batches, batch(run), normalizer=batch(run)["normalizer"] + 1)


@plants("consumed-version")
def consumed_version_taken_after_the_update(run: SyntheticRun) -> None:
    change(run, schema.groups, group(run), consumed_version=group(run)["consumed_version"] + 1)


@plants("staleness-negative")
def dispatched_at_a_later_version(run: SyntheticRun) -> None:
    change(run, schema.executions, victim(run), dispatch_version=99)

"""Faults in scores, and executions that were lost (invariants 8 and 9)."""

from infra.records import schema
from tests.infra.audit.planting import BATCH, MOVED, VICTIM, change_member, plants
from tests.infra.audit.recording import SyntheticRun, execution_id

# 8: scores


@plants("failure-rewarded")
def grader_failure_became_zero(run: SyntheticRun) -> None:
    run.change(schema.executions, {"execution": execution_id("first", 1, 1)}, reward=0.0)


@plants("failure-rewarded")
def grader_failure_became_zero_in_its_group(run: SyntheticRun) -> None:
    change_member(run, "first/0001", 1, reward=0.0)


@plants("reward-invalid")
def reward_above_one(run: SyntheticRun) -> None:
    run.change(schema.executions, {"execution": VICTIM}, reward=1.5)


@plants("reward-invalid")
def scored_without_a_reward(run: SyntheticRun) -> None:
    run.change(schema.executions, {"execution": VICTIM}, reward=None)


@plants("reward-disagrees")
def rewards_associated_with_the_wrong_execution(run: SyntheticRun) -> None:
    change_member(run, "first/0000", 0, reward=0.0)
    change_member(run, "first/0000", 1, reward=1.0)


@plants("valid-count-differs")
def failure_counted_as_valid(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "first/0001"}, valid=3)


@plants("invalid-execution-trained")
def failed_execution_trained(run: SyntheticRun) -> None:
    _, header = run.payload(BATCH, 3)
    for path in header["paths"]:
        path["execution"] = execution_id("first", 1, 1)
    run.repack(BATCH, 3, header=header)


@plants("reward-disagrees")
def failed_grader_trained_as_zero(run: SyntheticRun) -> None:
    """The grader never gave a reward; its group took 0 for one and trained on what that made of the others."""
    run.change(schema.executions, {"execution": VICTIM}, outcome="evaluator_failed", reward=None)
    change_member(run, "first/0000", 0, reward=0.0)


# 1, 9: nothing closed twice, nothing lost


@plants("execution-closed-twice")
def one_execution_closed_twice(run: SyntheticRun) -> None:
    """Its second report was counted, while others were still running: no total is exceeded yet."""
    entry = run.row(schema.ledger, kind="refuse")
    state = entry["state"]
    run.change(schema.ledger, {"entry": entry["entry"]}, state=state | {"finished": state["finished"] + 4})


@plants("execution-not-closed")
def execution_never_closed(run: SyntheticRun) -> None:
    run.change(schema.executions, {"execution": MOVED}, closed_at=None)


@plants("execution-lost")
def execution_dispatched_and_forgotten(run: SyntheticRun) -> None:
    for entry in range(7, 11):
        state = run.row(schema.ledger, entry=entry)["state"]
        run.change(schema.ledger, {"entry": entry}, state=state | {"dispatched": 25})

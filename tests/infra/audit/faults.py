"""Faults to plant in the synthetic run, one or more for every code of the audit's catalogue."""

from collections.abc import Callable
from typing import Any

import numpy as np

from infra.records import schema
from infra.records.tokens import pack_logprobs
from tests.infra.audit.synthetic import T0, SyntheticRun, batch_id, execution_id

Fault = Callable[[SyntheticRun], None]
FAULTS: list[tuple[str, str, Fault]] = []
"""(code that must be found, what was done, the doing)."""

VICTIM = execution_id("first", 0, 0)
MOVED = execution_id("first", 3, 2)
BATCH = batch_id("first", 0)
LAST = batch_id("second", 0)


def plants(code: str) -> Callable[[Fault], Fault]:
    def register(fault: Fault) -> Fault:
        FAULTS.append((code, fault.__name__, fault))
        return fault

    return register


def call_of(run: SyntheticRun, execution: str, sequence: int) -> dict[str, Any]:
    return run.row(schema.calls, execution=execution, sequence=sequence)


def change_call(run: SyntheticRun, execution: str, sequence: int, **values: Any) -> None:
    run.change(schema.calls, {"execution": execution, "sequence": sequence}, **values)


def change_state(run: SyntheticRun, kind: str, cell: int = 0, **values: Any) -> None:
    entry = run.row(schema.ledger, kind=kind, cell=cell)
    run.change(schema.ledger, {"entry": entry["entry"]}, state=entry["state"] | values)


def change_member(run: SyntheticRun, group: str, member: int, **values: Any) -> None:
    members = run.row(schema.groups, group_id=group)["members"]
    members[member] |= values
    run.change(schema.groups, {"group_id": group}, members=members)


# 1: counts, groups, membership


@plants("counts-out-of-order")
def more_finished_than_launched(run: SyntheticRun) -> None:
    change_state(run, "refuse", launched=5)


@plants("counts-out-of-order")
def negative_count(run: SyntheticRun) -> None:
    change_state(run, "dispatch", finished=-1)


@plants("counter-went-back")
def finished_counted_down(run: SyntheticRun) -> None:
    change_state(run, "move", cell=1, finished=9)


@plants("finished-exceeds-executions")
def finished_counted_twice(run: SyntheticRun) -> None:
    for entry in range(1, 11):
        state = run.row(schema.ledger, entry=entry)["state"]
        more = {name: state[name] + 20 for name in ("dispatched", "launched", "finished")}
        run.change(schema.ledger, {"entry": entry}, state=state | more)


@plants("group-incomplete")
def member_left_off_its_group(run: SyntheticRun) -> None:
    members = run.row(schema.groups, group_id="first/0002")["members"]
    run.change(schema.groups, {"group_id": "first/0002"}, members=members[:2])


@plants("group-incomplete")
def admitted_before_the_last_had_closed(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "first/0002"}, admitted_at=T0 + 27)


@plants("execution-in-two-groups")
def member_borrowed_from_another_group(run: SyntheticRun) -> None:
    change_member(run, "first/0002", 0, execution=VICTIM)


@plants("sequence-repeated")
def same_place_given_twice(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "second/0003"}, sequence=6)


@plants("group-in-two-batches")
def group_consumed_again(run: SyntheticRun) -> None:
    run.change(schema.batches, {"batch": LAST}, groups=["first/0000", "second/0000", "second/0001"])


@plants("batch-names-unknown-group")
def group_nobody_admitted(run: SyntheticRun) -> None:
    run.change(schema.batches, {"batch": LAST}, groups=["second/0000", "second/0001", "second/0009"])


@plants("group-batch-disagrees")
def group_says_another_batch(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "first/0001"}, batch=batch_id("first", 1))


@plants("membership-out-of-order")
def members_swapped(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "first/0001"}, sequence=2)
    run.change(schema.groups, {"group_id": "first/0002"}, sequence=1)


@plants("membership-skips")
def surplus_group_thrown_away(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "first/0000"}, batch=None, consumed_version=None)
    run.change(schema.batches, {"batch": BATCH}, groups=["first/0001"])


# 2: role changes


@plants("move-over-capacity")
def moved_with_too_much_work_out(run: SyntheticRun) -> None:
    change_state(run, "move", dispatched=19)


@plants("move-over-capacity")
def moved_counting_its_own_slots(run: SyntheticRun) -> None:
    state = run.row(schema.ledger, kind="move", cell=1)["state"]
    for cell in state["cells"]:
        cell["slots"] = 4 if cell["index"] == 1 else 0
    change_state(run, "move", cell=1, cells=state["cells"], dispatched=15, launched=15)


@plants("waterlevel-below-running")
def move_forgot_running_executions(run: SyntheticRun) -> None:
    change_state(run, "move", now=T0 + 24.5, finished=12)


@plants("capacity-counts-absent-cell")
def core_in_training_counted_as_serving(run: SyntheticRun) -> None:
    cells = run.row(schema.ledger, kind="move", cell=1)["state"]["cells"]
    cells[0]["serving"] = True
    change_state(run, "move", cell=1, cells=cells)


@plants("move-breaks-prefix")
def satellite_left_before_the_core(run: SyntheticRun) -> None:
    cells = run.row(schema.ledger, kind="move", cell=1)["state"]["cells"]
    cells[0] |= {"role": "rollout", "serving": True}
    change_state(run, "move", cell=1, cells=cells)


@plants("move-of-absent-cell")
def moved_while_another_move_was_under_way(run: SyntheticRun) -> None:
    change_state(run, "move", cell=1, move_under_way=True)


@plants("move-of-absent-cell")
def moved_a_cell_that_was_returning(run: SyntheticRun) -> None:
    cells = run.row(schema.ledger, kind="move", cell=1)["state"]["cells"]
    cells[1] |= {"role": "to_rollout", "serving": False}
    change_state(run, "move", cell=1, cells=cells)


@plants("transitions-overlap")
def two_cells_leaving_at_once(run: SyntheticRun) -> None:
    run.change(schema.transitions, {"cell": 0, "direction": "to_training", "started_at": T0 + 30.1}, ended_at=T0 + 34)


@plants("transitions-overlap")
def satellite_leaving_inside_a_long_departure(run: SyntheticRun) -> None:
    run.change(
        schema.transitions, {"cell": 1, "direction": "to_training", "started_at": T0 + 33.1}, started_at=T0 + 30.5
    )


@plants("transition-without-move")
def cell_left_without_a_decision(run: SyntheticRun) -> None:
    run.remove(schema.ledger, kind="move", cell=1, at=T0 + 33)


@plants("state-unreadable")
def move_without_its_state(run: SyntheticRun) -> None:
    run.change(schema.ledger, {"kind": "move", "cell": 0}, state={})


# 3: requests across engines


@plants("segment-sum")
def token_lost_at_the_reroute(run: SyntheticRun) -> None:
    call = call_of(run, MOVED, 1)["call"]
    run.change(schema.segments, {"call": call, "segment": 1}, output_tokens=0)


@plants("segment-prompt")
def reroute_resent_the_prompt_alone(run: SyntheticRun) -> None:
    call = call_of(run, MOVED, 1)
    run.change(schema.segments, {"call": call["call"], "segment": 1}, prompt_tokens=call["prompt_tokens"])


@plants("segment-after-end")
def went_on_after_a_stop(run: SyntheticRun) -> None:
    run.change(schema.segments, {"call": call_of(run, MOVED, 1)["call"], "segment": 0}, ended="stop")


@plants("rid-repeated")
def retry_reused_its_request_id(run: SyntheticRun) -> None:
    call = call_of(run, MOVED, 1)["call"]
    rid = run.row(schema.segments, call=call, segment=0)["rid"]
    run.change(schema.segments, {"call": call, "segment": 1}, rid=rid)


@plants("rid-length")
def request_id_is_a_prefix_of_another(run: SyntheticRun) -> None:
    call = call_of(run, MOVED, 1)["call"]
    rid = run.row(schema.segments, call=call, segment=0)["rid"]
    run.change(schema.segments, {"call": call, "segment": 1}, rid=rid[:-1])


@plants("budget-exceeded")
def resumed_with_the_full_budget(run: SyntheticRun) -> None:
    change_call(run, MOVED, 1, imposed={"budget": 2})


@plants("budget-exceeded")
def longer_than_the_burst_allows(run: SyntheticRun) -> None:
    run.change(schema.executions, {"execution": VICTIM}, sampling={"max_call_tokens": 3})


# 4: recorded tokens


@plants("tokens-misaligned")
def logprob_missing(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 0, output_logprobs=pack_logprobs([-1.0, -1.0, -1.0]))


@plants("tokens-misaligned")
def version_span_too_short(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 0, version_spans=[[0, 3]])


@plants("logprob-invalid")
def logprob_is_nan(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 0, output_logprobs=pack_logprobs([-1.0, float("nan"), -1.0, -1.0]))


@plants("logprob-invalid")
def logprob_is_positive(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 0, output_logprobs=pack_logprobs([-1.0, 0.5, -1.0, -1.0]))


@plants("parent-missing")
def parent_of_another_execution(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 1, parent_call=call_of(run, MOVED, 0)["call"])


@plants("parent-missing")
def parent_is_the_call_itself(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 1, parent_call=call_of(run, VICTIM, 1)["call"])


@plants("shared-too-long")
def shares_more_than_the_parent_has(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 1, shared_tokens=11)


@plants("prompt-length")
def prompt_longer_than_its_ids(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 1, prompt_tokens=13)


# 5: targets and the gradient


@plants("accepted-unknown")
def accepted_what_was_never_packed(run: SyntheticRun) -> None:
    accepted = run.row(schema.batches, batch=BATCH)["accepted"]
    run.change(schema.batches, {"batch": BATCH}, accepted=[*accepted, accepted[0] | {"index": 99}])


@plants("micro-step-accepted-twice")
def counted_both_attempts(run: SyntheticRun) -> None:
    accepted = run.row(schema.batches, batch=BATCH)["accepted"]
    run.change(schema.batches, {"batch": BATCH}, accepted=[*accepted, accepted[1] | {"attempt": 1}])


@plants("micro-step-not-accepted")
def lost_micro_step_never_returned(run: SyntheticRun) -> None:
    accepted = run.row(schema.batches, batch=BATCH)["accepted"]
    run.change(schema.batches, {"batch": BATCH}, accepted=accepted[:-1])


@plants("claim-missing")
def accepted_from_another_cell(run: SyntheticRun) -> None:
    accepted = run.row(schema.batches, batch=BATCH)["accepted"]
    accepted[0]["cell"] = 2
    run.change(schema.batches, {"batch": BATCH}, accepted=accepted)


@plants("claim-unfinished")
def accepted_a_lost_attempt(run: SyntheticRun) -> None:
    run.change(schema.claims, {"batch": BATCH, "micro_step": 1, "attempt": 2}, done_at=None)


@plants("boot-missing")
def accepted_from_an_unknown_boot(run: SyntheticRun) -> None:
    run.change(schema.boots, {"component": "cell-1"}, boot_epoch=2)


@plants("micro-step-of-other-group")
def micro_step_of_a_later_group(run: SyntheticRun) -> None:
    run.change(schema.micro_steps, {"batch": BATCH, "micro_step": 0}, group_id="first/0003")


@plants("payload-missing")
def payload_deleted(run: SyntheticRun) -> None:
    (run.folder / "objects" / run.row(schema.micro_steps, batch=BATCH)["uri"]).unlink()


@plants("payload-missing")
def payload_truncated(run: SyntheticRun) -> None:
    uri = run.row(schema.micro_steps, batch=BATCH)["uri"]
    run.store.put(uri, run.store.read(uri)[:100])


@plants("payload-altered")
def payload_rewritten_after_packing(run: SyntheticRun) -> None:
    arrays, _ = run.payload(BATCH, 0)
    run.repack(BATCH, 0, honest=False, weights=arrays["weights"] * np.float32(1.00001))


@plants("payload-mislabelled")
def payload_of_another_batch(run: SyntheticRun) -> None:
    _, header = run.payload(BATCH, 0)
    run.repack(BATCH, 0, header=header | {"batch": LAST})


@plants("payload-mislabelled")
def target_count_recorded_wrong(run: SyntheticRun) -> None:
    run.change(schema.micro_steps, {"batch": BATCH, "micro_step": 0}, target_tokens=8)


@plants("positions-differ")
def positions_run_on_over_paths(run: SyntheticRun) -> None:
    arrays, _ = run.payload(BATCH, 0)
    run.repack(BATCH, 0, positions=np.arange(len(arrays["ids"]), dtype=np.int32))


@plants("target-unknown-call")
def target_of_another_execution(run: SyntheticRun) -> None:
    _, header = run.payload(BATCH, 0)
    header["paths"][0]["spans"][0]["call"] = call_of(run, MOVED, 0)["call"]
    run.repack(BATCH, 0, header=header)


@plants("target-trained-twice")
def shared_prefix_trained_in_both_paths(run: SyntheticRun) -> None:
    arrays, header = run.payload(BATCH, 0)
    base = int(arrays["path_offsets"][1])
    for name in ("targets", "weights", "behaviour_logprobs", "versions"):
        arrays[name][base + 6 : base + 10] = arrays[name][6:10]
    first = header["paths"][0]["spans"][0]
    header["paths"][1]["spans"].append(first | {"start": base + 6, "end": base + 10})
    run.repack(BATCH, 0, header=header, **arrays)


@plants("target-trained-twice")
def same_execution_in_two_micro_steps(run: SyntheticRun) -> None:
    _copy_micro_step(run, BATCH, 0, BATCH, 40)


@plants("target-trained-twice")
def same_execution_in_two_batches(run: SyntheticRun) -> None:
    _copy_micro_step(run, BATCH, 0, LAST, 40)


def _copy_micro_step(run: SyntheticRun, batch: str, micro_step: int, to: str, index: int) -> None:
    row = run.row(schema.micro_steps, batch=batch, micro_step=micro_step)
    run.add(schema.micro_steps, row | {"batch": to, "micro_step": index})


@plants("target-ids-differ")
def context_was_rendered_anew(run: SyntheticRun) -> None:
    arrays, _ = run.payload(BATCH, 0)
    arrays["ids"][2] += 1
    run.repack(BATCH, 0, ids=arrays["ids"])


@plants("target-ids-differ")
def target_shifted_by_one(run: SyntheticRun) -> None:
    arrays, header = run.payload(BATCH, 0)
    span = header["paths"][1]["spans"][0]
    for name in ("targets", "weights", "behaviour_logprobs", "versions"):
        arrays[name][span["start"] - 1 : span["end"] - 1] = arrays[name][span["start"] : span["end"]].copy()
        arrays[name][span["end"] - 1] = -1 if name == "versions" else 0
    span["start"], span["end"] = span["start"] - 1, span["end"] - 1
    run.repack(BATCH, 0, header=header, **arrays)


@plants("target-logprob-differs")
def logprob_recomputed_by_the_trainer(run: SyntheticRun) -> None:
    arrays, _ = run.payload(BATCH, 0)
    arrays["behaviour_logprobs"][7] -= np.float32(1e-3)
    run.repack(BATCH, 0, behaviour_logprobs=arrays["behaviour_logprobs"])


@plants("target-mask-differs")
def context_token_made_a_target(run: SyntheticRun) -> None:
    arrays, _ = run.payload(BATCH, 0)
    arrays["targets"][3] = True
    run.repack(BATCH, 0, targets=arrays["targets"])


@plants("target-count-differs")
def path_dropped_after_admission(run: SyntheticRun) -> None:
    arrays, header = run.payload(BATCH, 0)
    span = header["paths"][1]["spans"].pop()
    arrays["targets"][span["start"] : span["end"]] = False
    arrays["weights"][span["start"] : span["end"]] = 0
    run.repack(BATCH, 0, header=header, **arrays)


@plants("weight-differs")
def weights_divided_by_the_micro_step(run: SyntheticRun) -> None:
    arrays, _ = run.payload(BATCH, 0)
    run.repack(BATCH, 0, weights=arrays["weights"] * np.float32(9 / 7))


@plants("weight-differs")
def weight_on_context(run: SyntheticRun) -> None:
    arrays, _ = run.payload(BATCH, 0)
    arrays["weights"][3] = 0.1
    run.repack(BATCH, 0, weights=arrays["weights"])


@plants("advantage-differs")
def advantage_over_another_deviation(run: SyntheticRun) -> None:
    advantage = run.row(schema.groups, group_id="first/0000")["members"][0]["advantage"]
    change_member(run, "first/0000", 0, advantage=advantage * 1.2247)


@plants("advantage-differs")
def failure_entered_the_statistics_as_zero(run: SyntheticRun) -> None:
    # The advantages that (1, 0, 0.25) would have given instead of (1, 0.25).
    for member, advantage in enumerate((1.1208970, -0.8006407, -0.3202563)):
        change_member(run, "first/0001", member, advantage=advantage)


@plants("signal-differs")
def group_of_equal_rewards_with_signal(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "first/0002"}, no_signal=None)


@plants("signal-differs")
def group_with_signal_left_out(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "first/0000"}, no_signal="equal_rewards")


@plants("normalizer-differs")
def normalised_by_all_executions(run: SyntheticRun) -> None:
    run.change(schema.batches, {"batch": BATCH}, normalizer=6)


@plants("normalizer-differs")
def no_signal_group_in_the_normaliser(run: SyntheticRun) -> None:
    run.change(schema.batches, {"batch": batch_id("first", 1)}, normalizer=6)


# 6: weight versions of training


@plants("claim-version")
def satellite_trained_old_weights(run: SyntheticRun) -> None:
    run.change(schema.claims, {"batch": LAST, "micro_step": 1, "attempt": 2}, version=1)


@plants("target-version-differs")
def target_stamped_with_the_current_version(run: SyntheticRun) -> None:
    arrays, _ = run.payload(batch_id("first", 1), 0)
    versions = np.where(arrays["targets"], 1, -1).astype(np.int64)
    run.repack(batch_id("first", 1), 0, versions=versions)


@plants("target-from-the-future")
def target_sampled_after_the_update(run: SyntheticRun) -> None:
    arrays, _ = run.payload(BATCH, 0)
    run.repack(BATCH, 0, versions=np.where(arrays["targets"], 5, -1).astype(np.int64))


@plants("update-gap")
def version_skipped(run: SyntheticRun) -> None:
    run.change(schema.updates, {"version": 3}, version=4)


@plants("update-gap")
def updates_committed_backwards(run: SyntheticRun) -> None:
    run.change(schema.updates, {"version": 1}, committed_at=T0 + 46)


@plants("update-missing")
def batch_without_its_update(run: SyntheticRun) -> None:
    run.remove(schema.updates, version=3)


@plants("update-repeated")
def two_updates_of_one_batch(run: SyntheticRun) -> None:
    run.change(schema.updates, {"version": 2}, batch=BATCH)


@plants("update-without-targets")
def empty_batch_stepped(run: SyntheticRun) -> None:
    run.change(schema.batches, {"batch": batch_id("second", 1)}, version_after=4)


@plants("version-went-back")
def core_restarted_at_an_old_version(run: SyntheticRun) -> None:
    run.change(schema.batches, {"batch": LAST}, version_before=1)


@plants("checksum-repeated")
def update_changed_nothing(run: SyntheticRun) -> None:
    run.change(schema.updates, {"version": 3}, checksum=f"{2:064x}")


@plants("consumed-version")
def consumed_version_taken_after_the_update(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "first/0001"}, consumed_version=1)


@plants("staleness-negative")
def dispatched_at_a_later_version(run: SyntheticRun) -> None:
    run.change(schema.executions, {"execution": VICTIM}, dispatch_version=1)


@plants("staleness-negative")
def admitted_after_it_was_consumed(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "first/0001"}, admitted_version=1)


# 7: weight versions of rollout


@plants("request-went-back")
def rerouted_to_an_older_engine(run: SyntheticRun) -> None:
    call = call_of(run, execution_id("second", 3, 2), 1)["call"]
    run.change(schema.segments, {"call": call, "segment": 1}, version=1)


@plants("unpublished-version")
def served_an_intermediate_version(run: SyntheticRun) -> None:
    call = call_of(run, execution_id("second", 0, 0), 0)["call"]
    run.change(schema.segments, {"call": call}, version=1)


@plants("unpublished-version")
def served_before_the_commit(run: SyntheticRun) -> None:
    run.change(schema.segments, {"call": call_of(run, VICTIM, 0)["call"]}, version=2)


@plants("unpublished-version")
def publish_never_recorded(run: SyntheticRun) -> None:
    run.change(schema.updates, {"version": 2}, published_at=None)
    run.remove(schema.ledger, kind="publish", at=T0 + 45.2)


@plants("stale-engine")
def returned_with_old_weights(run: SyntheticRun) -> None:
    call = call_of(run, execution_id("second", 0, 0), 0)["call"]
    run.change(schema.segments, {"call": call}, version=0)


@plants("stale-engine")
def returned_with_old_weights_before_the_publish_was_over(run: SyntheticRun) -> None:
    run.change(schema.updates, {"version": 2}, published_at=None)
    returned_with_old_weights(run)


@plants("served-while-away")
def core_served_while_training(run: SyntheticRun) -> None:
    run.change(schema.segments, {"call": call_of(run, VICTIM, 0)["call"]}, started_at=T0 + 35)


@plants("segment-boot-missing")
def segment_of_an_unknown_boot(run: SyntheticRun) -> None:
    run.change(schema.segments, {"call": call_of(run, VICTIM, 0)["call"]}, boot_epoch=7)


@plants("token-version-differs")
def tokens_labelled_by_the_proxy(run: SyntheticRun) -> None:
    change_call(run, execution_id("second", 0, 0), 0, version_spans=[[0, 2], [2, 2]])


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


# 9: nothing lost


@plants("execution-not-closed")
def execution_never_closed(run: SyntheticRun) -> None:
    run.change(schema.executions, {"execution": MOVED}, closed_at=None)


@plants("execution-lost")
def execution_dispatched_and_forgotten(run: SyntheticRun) -> None:
    for entry in range(7, 11):
        state = run.row(schema.ledger, entry=entry)["state"]
        run.change(schema.ledger, {"entry": entry}, state=state | {"dispatched": 25})

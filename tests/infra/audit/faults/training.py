"""Faults in what was trained, and how it was weighed and counted (invariant 5)."""

import numpy as np

from infra.records import schema
from tests.infra.audit.planting import BATCH, LAST, MOVED, call_of, change_member, plants
from tests.infra.audit.recording import SyntheticRun, batch_id

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
    base = int(arrays["segment_offsets"][1])
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


@plants("target-lost")
def target_masked_away_before_admission(run: SyntheticRun) -> None:
    """The fork's last token is no target, and |T_i| was frozen without it: counts and weights agree with each other."""
    arrays, header = run.payload(BATCH, 0)
    span = header["paths"][1]["spans"][0]
    span["end"] -= 1
    for name, nothing in (("targets", False), ("weights", 0), ("behaviour_logprobs", 0), ("versions", -1)):
        arrays[name][span["end"]] = nothing
    arrays["weights"] *= np.float32(9 / 8)
    for path in header["paths"]:
        path["target_total"] = 8
    run.repack(BATCH, 0, header=header, **arrays)
    run.change(schema.micro_steps, {"batch": BATCH, "micro_step": 0}, target_tokens=8)
    change_member(run, "first/0000", 0, target_tokens=8)


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


@plants("advantage-differs")
def advantages_of_another_method_than_the_bursts(run: SyntheticRun) -> None:
    run.change(schema.batches, {"batch": BATCH}, settings={"advantage": "rloo"})


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

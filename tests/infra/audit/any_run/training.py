"""Faults in micro-steps, claims, payloads and updates (invariants 5 and 6)."""

from typing import Any

import numpy as np

from infra.records import schema
from tests.infra.audit.any_run.subjects import (
    batch,
    batches,
    change,
    claim,
    first,
    micro_step,
    plants,
    rows,
)
from tests.infra.audit.recording import SyntheticRun

# 5: micro-steps and claims


def change_accepted(run: SyntheticRun, *more: dict[str, Any], drop: int = 0) -> None:
    kept = batch(run)["accepted"]
    change(run, schema.batches, batch(run), accepted=[*kept[: len(kept) - drop], *more])


@plants("accepted-unknown")
def accepted_what_was_never_packed(run: SyntheticRun) -> None:
    change_accepted(run, batch(run)["accepted"][0] | {"index": 9999})


@plants("micro-step-accepted-twice")
def counted_twice(run: SyntheticRun) -> None:
    change_accepted(run, batch(run)["accepted"][0])


@plants("micro-step-not-accepted")
def lost_micro_step_never_returned(run: SyntheticRun) -> None:
    change_accepted(run, drop=1)


@plants("claim-missing")
def accepted_an_attempt_nobody_made(run: SyntheticRun) -> None:
    last = batch(run)["accepted"][-1]
    change_accepted(run, last | {"attempt": last["attempt"] + 50}, drop=1)


@plants("claim-unfinished")
def accepted_a_lost_attempt(run: SyntheticRun) -> None:
    change(run, schema.claims, claim(run), done_at=None)


@plants("boot-missing")
def accepted_from_an_unknown_boot(run: SyntheticRun) -> None:
    boot = run.row(schema.boots, component=f"cell-{claim(run)['cell']}", boot_epoch=claim(run)["boot_epoch"])
    change(run, schema.boots, boot, boot_epoch=99)


@plants("micro-step-of-other-group")
def micro_step_of_a_later_group(run: SyntheticRun) -> None:
    change(run, schema.micro_steps, micro_step(run), group_id=batches(run)[-1]["groups"][-1])


@plants("target-trained-twice")
def same_execution_in_two_micro_steps(run: SyntheticRun) -> None:
    run.add(schema.micro_steps, micro_step(run) | {"micro_step": 9999})


# 5: payloads


class Payload:
    """The first batch's first payload: arrays and header to change, and a span of targets in it."""

    def __init__(self, run: SyntheticRun) -> None:
        self.run, self.row = run, micro_step(run)
        self.arrays, self.header = run.payload(self.row["batch"], self.row["micro_step"])
        self.path = next(path for path in self.header["paths"] if path["spans"])
        self.span = self.path["spans"][0]

    def write(self, *, honest: bool = True) -> None:
        """`honest`: under a new hash, so that only the content is wrong."""
        place = self.row["batch"], self.row["micro_step"]
        self.run.repack(*place, honest=honest, header=self.header, **self.arrays)


@plants("payload-missing")
def payload_deleted(run: SyntheticRun) -> None:
    (run.folder / "objects" / micro_step(run)["uri"]).unlink()


@plants("payload-altered")
def payload_rewritten_after_packing(run: SyntheticRun) -> None:
    payload = Payload(run)
    payload.arrays["weights"] *= np.float32(1.00001)
    payload.write(honest=False)


@plants("payload-mislabelled")
def payload_of_another_batch(run: SyntheticRun) -> None:
    payload = Payload(run)
    payload.header["batch"] = batches(run)[-1]["batch"]
    payload.write()


@plants("positions-differ")
def positions_begin_at_one(run: SyntheticRun) -> None:
    payload = Payload(run)
    payload.arrays["positions"] += 1
    payload.write()


@plants("target-unknown-call")
def target_of_no_call(run: SyntheticRun) -> None:
    payload = Payload(run)
    payload.span["call"] = "0" * 32
    payload.write()


@plants("target-ids-differ")
def context_was_rendered_anew(run: SyntheticRun) -> None:
    payload = Payload(run)
    payload.arrays["ids"][payload.span["start"] - 1] += 1
    payload.write()


@plants("target-logprob-differs")
def logprob_recomputed_by_the_trainer(run: SyntheticRun) -> None:
    payload = Payload(run)
    payload.arrays["behaviour_logprobs"][payload.span["start"]] -= np.float32(1e-3)
    payload.write()


@plants("target-logprob-differs")
def logprobs_of_two_targets_swapped(run: SyntheticRun) -> None:
    payload = Payload(run)
    logprobs = payload.arrays["behaviour_logprobs"]
    places = np.flatnonzero(payload.arrays["targets"])
    one = places[0]
    other = next(place for place in places if logprobs[place] != logprobs[one])
    logprobs[[one, other]] = logprobs[[other, one]]
    payload.write()


@plants("target-mask-differs")
def context_token_made_a_target(run: SyntheticRun) -> None:
    payload = Payload(run)
    payload.arrays["targets"][payload.span["start"] - 1] ^= True
    payload.write()


@plants("target-count-differs")
def span_dropped_after_admission(run: SyntheticRun) -> None:
    payload = Payload(run)
    span = payload.path["spans"].pop(0)
    payload.arrays["targets"][span["start"] : span["end"]] = False
    payload.arrays["weights"][span["start"] : span["end"]] = 0
    payload.write()


@plants("target-lost")
def generated_token_masked_away(run: SyntheticRun) -> None:
    payload = Payload(run)
    span = payload.path["spans"][0]
    for name, nothing in (("targets", False), ("weights", 0), ("behaviour_logprobs", 0), ("versions", -1)):
        payload.arrays[name][span["start"]] = nothing
    span["start"], span["offset"] = span["start"] + 1, span["offset"] + 1
    payload.write()


@plants("weight-differs")
def weights_divided_by_something_else(run: SyntheticRun) -> None:
    payload = Payload(run)
    payload.arrays["weights"] *= np.float32(1.5)
    payload.write()


# 6: weight versions of training


@plants("claim-version")
def satellite_trained_other_weights(run: SyntheticRun) -> None:
    change(run, schema.claims, claim(run), version=claim(run)["version"] + 5)


@plants("target-version-differs")
def target_stamped_with_another_version(run: SyntheticRun) -> None:
    payload = Payload(run)
    payload.arrays["versions"][payload.span["start"]] += 1
    payload.write()


@plants("target-from-the-future")
def target_sampled_after_the_update(run: SyntheticRun) -> None:
    payload = Payload(run)
    payload.arrays["versions"][payload.span["start"]] = 99
    payload.write()


def updates(run: SyntheticRun) -> list[dict[str, Any]]:
    return rows(run, schema.updates, "version", holds=lambda row: row["batch"] is not None)


@plants("update-gap")
def version_skipped(run: SyntheticRun) -> None:
    change(run, schema.updates, updates(run)[-1], version=updates(run)[-1]["version"] + 1)


@plants("core-gap")
def hand_over_that_nobody_recorded(run: SyntheticRun) -> None:
    last = updates(run)[-1]
    row = {"cell": 1, "version": last["version"], "checksum": last["checksum"], "named_at": last["committed_at"] + 1}
    run.add(schema.cores, row | {"change": 1000})


@plants("core-version")
def core_handed_over_at_weights_that_nobody_made(run: SyntheticRun) -> None:
    last = updates(run)[-1]
    row = {"cell": 1, "version": last["version"] + 100, "checksum": "f" * 64, "named_at": last["committed_at"] + 1}
    run.add(schema.cores, row | {"change": 1000})


@plants("update-missing")
def batch_without_its_update(run: SyntheticRun) -> None:
    run.remove(schema.updates, version=updates(run)[-1]["version"])


@plants("update-repeated")
def two_updates_of_one_batch(run: SyntheticRun) -> None:
    one, other = updates(run)[:2]
    change(run, schema.updates, other, batch=one["batch"])


@plants("update-without-targets")
def empty_batch_stepped(run: SyntheticRun) -> None:
    last = batches(run)[-1]
    run.remove(schema.micro_steps, batch=last["batch"])
    change(run, schema.batches, last, accepted=[])


@plants("version-went-back")
def core_restarted_at_an_old_version(run: SyntheticRun) -> None:
    last = batches(run)[-1]
    change(run, schema.batches, last, version_before=last["version_before"] - 1)


@plants("checksum-repeated")
def update_changed_nothing(run: SyntheticRun) -> None:
    every = rows(run, schema.updates, "version")
    change(run, schema.updates, first(every[1:], "second version"), checksum=every[0]["checksum"])


@plants("checksum-differs")
def batch_left_weights_that_no_update_made(run: SyntheticRun) -> None:
    change(run, schema.batches, batch(run), checksum_after="f" * 64)


@plants("checksum-differs")
def gradient_computed_with_torn_weights(run: SyntheticRun) -> None:
    last = batches(run)[-1]
    counted = last["accepted"][0]
    key = {"batch": last["batch"], "micro_step": counted["index"], "attempt": counted["attempt"]}
    run.change(schema.claims, key, checksum="e" * 64)

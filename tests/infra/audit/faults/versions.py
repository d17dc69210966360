"""Faults in weight versions, of training and of rollout (invariants 6 and 7)."""

import numpy as np

from infra.records import schema
from tests.infra.audit.planting import BATCH, LAST, VICTIM, call_of, change_call, hand_over, plants
from tests.infra.audit.recording import T0, SyntheticRun, batch_id, execution_id

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


@plants("core-gap")
def hand_over_that_nobody_recorded(run: SyntheticRun) -> None:
    run.add(schema.cores, hand_over(run, 2))


@plants("core-version")
def core_handed_over_at_weights_that_nobody_made(run: SyntheticRun) -> None:
    run.add(schema.cores, hand_over(run, 1) | {"version": 99})


@plants("core-version")
def core_handed_over_at_older_weights(run: SyntheticRun) -> None:
    older = hand_over(run, 2, version=1)
    run.add(schema.cores, hand_over(run, 1, version=2), older)


@plants("checksum-differs")
def core_handed_over_with_other_weights(run: SyntheticRun) -> None:
    run.add(schema.cores, hand_over(run, 1) | {"checksum": "f" * 64})


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


@plants("checksum-differs")
def batch_began_with_weights_that_no_update_made(run: SyntheticRun) -> None:
    run.change(schema.batches, {"batch": LAST}, checksum_before="f" * 64)


@plants("checksum-differs")
def satellite_pulled_torn_weights(run: SyntheticRun) -> None:
    run.change(schema.claims, {"batch": LAST, "micro_step": 1, "attempt": 2}, checksum="e" * 64)


@plants("checksum-differs")
def engine_serves_other_weights_under_the_version(run: SyntheticRun) -> None:
    engine = {"engine": "engine-9", "cell": 2, "boot_epoch": 1, "url": "none", "slots": 4, "kv_tokens": 1}
    run.add(schema.engines, engine | {"version": 1, "checksum": "d" * 64, "door": "open", "updated_at": 0.0})


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


@plants("mixed-kv-unexplained")
def kept_kv_that_no_publish_kept(run: SyntheticRun) -> None:
    call = call_of(run, execution_id("second", 0, 0), 0)
    run.change(schema.segments, {"call": call["call"]}, version=0, mixed_kv_tokens=call["output_tokens"])


@plants("token-version-differs")
def old_tokens_counted_as_mixed(run: SyntheticRun) -> None:
    run.change(schema.segments, {"call": call_of(run, VICTIM, 0)["call"]}, mixed_kv_tokens=1)

"""The audit of a sound run, what its figures count, and how it reads damaged input."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra import audit
from infra.audit import AuditReport, audit_records, audit_run
from infra.audit.histories import CallHistory, RecordedCall
from infra.audit.payloads import read_payload
from infra.audit.report import KEPT_PER_CODE
from infra.audit.rewards import advantages, has_spread
from infra.audit.targets import target_digests
from infra.micro_steps import decode
from infra.records import schema
from tests.infra.audit.faults.training import same_execution_in_two_batches
from tests.infra.audit.faults.versions import satellite_trained_old_weights
from tests.infra.audit.planting import VICTIM, hand_over
from tests.infra.audit.recording import T0, SyntheticRun, batch_id, execution_id
from workflows.messages.errors import InvalidInput


def test_a_sound_run_has_no_findings(sound_folder: Path) -> None:
    report = audit_run(sound_folder, at_rest=True)
    assert report.ok
    assert report.findings == []
    assert report.run == "synthetic"
    assert report.figures == {
        "counts": {"dispatched": 24, "launched": 24, "finished": 24},
        "executions": 24,
        "unrecorded_executions": 0,
        "calls": 72,
        "output_tokens": 216,
        "segments": 74,
        "groups": 8,
        "batches": 4,
        "updates": 3,
        "micro_steps": 13,
        "claims": 16,
        "target_tokens": 117,
        "targets_trained_twice": 0,
        "version_mismatches": 0,
        "moves": 4,
        "max_w_minus_capacity": -4,
        "satellite_joins": 3,
        "transitions": {"boot": 3, "to_training": 4, "to_rollout": 4, "publish": 2},
        "requests_moved": 2,
        "kv_tokens_reused": 12,
    }


def test_the_audit_has_code_of_its_own() -> None:
    """A fault in what it checks must not hide itself: it knows the schema, stores, settings and messages."""
    folder = Path(audit.__file__).parent
    sources = "\n".join(path.read_text() for path in folder.glob("*.py"))
    imported = set(
        re.findall(r"^(?:from|import) ((?:infra|activities|workers|workflows|harness_adapters)[\w.]*)", sources, re.M)
    )
    allowed = {"infra.objects", "infra.records", "infra.records.database", "infra.settings.run"}
    allowed |= {"workflows.messages.base", "workflows.messages.errors"}
    assert {name for name in imported if not name.startswith("infra.audit")} == allowed


def test_report_survives_json(sound_folder: Path) -> None:
    report = audit_run(sound_folder, at_rest=True)
    assert AuditReport.model_validate_json(report.model_dump_json()) == report


def test_synthetic_payloads_are_what_the_product_reads(recorded: SyntheticRun) -> None:
    blob = recorded.store.read(recorded.row(schema.micro_steps, batch=batch_id("first", 0))["uri"])
    theirs, ours = decode(blob), read_payload(blob)
    assert [np.arange(*span).tolist() for span in theirs.segment_spans()] == [
        path.places.tolist() for path in ours.paths
    ]
    assert np.array_equal(theirs.weights, ours.weights)


def test_figures_count_every_token_trained_twice(recorded: SyntheticRun) -> None:
    same_execution_in_two_batches(recorded)
    report = audit_records(recorded.engine, recorded.store)
    assert report.figures["targets_trained_twice"] == 9


def test_figures_count_version_mismatches(recorded: SyntheticRun) -> None:
    satellite_trained_old_weights(recorded)
    assert audit_records(recorded.engine, recorded.store).figures["version_mismatches"] == 1


def test_a_run_that_goes_on_may_have_open_executions(recorded: SyntheticRun) -> None:
    recorded.add(
        schema.executions,
        recorded.row(schema.executions, execution=VICTIM)
        | {
            "execution": execution_id("third", 0, 0),
            "burst": "third",
            "closed_at": None,
            "outcome": None,
            "reward": None,
        },
    )
    assert audit_records(recorded.engine, recorded.store).ok
    assert audit_records(recorded.engine, recorded.store, at_rest=True).found == {
        "execution-not-closed": 1,
        "execution-lost": 1,
    }


def test_an_open_batch_has_consumed_nothing(recorded: SyntheticRun) -> None:
    """A batch given up without a commit leaves its groups to a later one."""
    abandoned = recorded.row(schema.batches, batch=batch_id("first", 0))
    recorded.add(schema.batches, abandoned | {"batch": "synthetic/batch/given-up/0", "committed_at": None})
    assert audit_records(recorded.engine, recorded.store, at_rest=True).ok


def test_an_empty_database_has_nothing_wrong(tmp_path: Path) -> None:
    run = SyntheticRun.open(tmp_path)
    report = audit_records(run.engine, run.store, at_rest=True)
    run.engine.dispose()
    assert report.ok
    assert report.figures["max_w_minus_capacity"] is None


def test_no_run_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no run is recorded"):
        audit_run(tmp_path)


def test_other_advantages_are_told_apart(sound_folder: Path) -> None:
    assert "weight-differs" in audit_run(sound_folder, advantage="dr_grpo").codes()


def test_findings_are_bounded_but_counted(recorded: SyntheticRun) -> None:
    with recorded.engine.begin() as connection:
        connection.execute(schema.segments.update().values(version=99))
    report = audit_records(recorded.engine, recorded.store)
    assert report.found["unpublished-version"] == 74
    assert sum(finding.code == "unpublished-version" for finding in report.findings) == KEPT_PER_CODE


def test_publish_is_known_from_the_ledger_alone(recorded: SyntheticRun) -> None:
    with recorded.engine.begin() as connection:
        connection.execute(schema.updates.update().values(published_at=None))
    assert audit_records(recorded.engine, recorded.store, at_rest=True).ok


def test_a_retried_departure_needs_no_second_move(recorded: SyntheticRun) -> None:
    """A person resumed a parked departure: the same move, another transition."""
    first = recorded.row(schema.transitions, cell=0, direction="to_training")
    recorded.change(schema.transitions, {"transition": first["transition"]}, result="parked")
    again = {"transition": "again", "started_at": first["ended_at"] + 0.5, "ended_at": first["ended_at"] + 1}
    recorded.add(schema.transitions, first | again)
    assert audit_records(recorded.engine, recorded.store, at_rest=True).ok


def test_a_cancelled_burst_explains_what_it_gave_up(recorded: SyntheticRun) -> None:
    """Three executions were closed while queued, and a batch with two ready groups was given up."""
    recorded.remove(schema.updates, version=3)
    recorded.remove(schema.micro_steps, batch=batch_id("second", 0))
    recorded.change(
        schema.batches, {"batch": batch_id("second", 0)}, committed_at=None, version_after=None, groups=None
    )
    later = {"batch": batch_id("second", 1), "version_before": 2, "version_after": 2}
    later |= {"checksum_before": f"{2:064x}", "checksum_after": f"{2:064x}"}
    recorded.change(schema.batches, {"batch": batch_id("second", 1)}, **later)
    for group in ("second/0002", "second/0003"):
        recorded.change(schema.groups, {"group_id": group}, consumed_version=2)
    entry = recorded.row(schema.ledger, entry=10)
    state = entry["state"] | {"dispatched": 27, "launched": 27, "finished": 27, "now": entry["at"] + 9}
    note = entry | {"entry": 11, "kind": "close", "cell": None, "state": state, "token": "cancelled"}
    assert audit_records(recorded.engine, recorded.store, at_rest=True).codes() == {"membership-skips"}
    recorded.add(schema.ledger, note | {"reasons": ["burst second cancelled: 3 queued executions closed"]})
    assert audit_records(recorded.engine, recorded.store, at_rest=True).found == {}


def test_a_pool_leaves_together_whatever_the_waterlevel(recorded: SyntheticRun) -> None:
    """`colocate`: two cells go in one decision, over the capacity that binds `waterlevel` alone."""
    move = recorded.row(schema.ledger, kind="move", cell=0)
    state = move["state"] | {"bounds": {"min_rollout_cells": 0, "min_training_cells": 0, "max_training_cells": None}}
    second = recorded.row(schema.ledger, kind="move", cell=1)
    recorded.remove(schema.ledger, entry=second["entry"])
    recorded.change(
        schema.ledger, {"entry": move["entry"]}, policy="colocate", together=[1], direction="to_training", state=state
    )
    recorded.change(
        schema.transitions, {"cell": 1, "direction": "to_training", "started_at": T0 + 33.1}, started_at=T0 + 30.2
    )
    assert audit_records(recorded.engine, recorded.store, at_rest=True).codes() == set()


def test_a_shuffled_burst_may_train_its_groups_in_any_order(recorded: SyntheticRun) -> None:
    names = [f"first/{number:04d}" for number in range(4)]
    places = [recorded.row(schema.groups, group_id=name)["sequence"] for name in names]
    for name, place in zip(names, reversed(places), strict=True):
        recorded.change(schema.groups, {"group_id": name}, sequence=place)
    assert "membership-out-of-order" in audit_records(recorded.engine, recorded.store, at_rest=True).codes()
    told = ["first: 4 groups, 12 executions", "shuffled over its steps"]
    recorded.change(schema.ledger, {"kind": "dispatch", "at": T0 + 5}, reasons=told)
    assert audit_records(recorded.engine, recorded.store, at_rest=True).codes() == set()


@given(st.lists(st.integers(0, 8), min_size=2, max_size=8).filter(lambda eighths: len(set(eighths)) > 1))
def test_advantages_have_no_mean_and_keep_the_order_of_rewards(eighths: list[int]) -> None:
    named = {str(index): value / 8 for index, value in enumerate(eighths)}
    assert has_spread(list(named.values()))
    for method in ("grpo", "dr_grpo", "rloo"):
        own = advantages(named, method)
        assert abs(sum(own.values())) < 1e-6
        assert sorted(own, key=own.__getitem__) == sorted(named, key=named.__getitem__)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.data(),
)
def test_digests_are_equal_exactly_for_equal_prefixes(one: list[int], other: list[int], data: st.DataObject) -> None:
    masks = [np.array(data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))) for ids in (one, other)]
    found = [target_digests(np.array(ids, dtype=np.int32), mask) for ids, mask in zip((one, other), masks, strict=True)]
    places = [np.flatnonzero(mask).tolist() for mask in masks]
    for place, digest in zip(places[0], found[0], strict=True):
        for other_place, other_digest in zip(places[1], found[1], strict=True):
            assert (digest == other_digest) == (one[: place + 1] == other[: other_place + 1])


@given(st.data())
def test_full_ids_are_rebuilt_through_any_chain_of_parents(data: st.DataObject) -> None:
    calls: dict[str, RecordedCall] = {}
    wholes: dict[str, list[int]] = {}
    tokens = st.lists(st.integers(0, 9), max_size=6)
    for number in range(data.draw(st.integers(1, 8))):
        parent = data.draw(st.sampled_from([None, *wholes]))
        shared = data.draw(st.integers(0, len(wholes[parent]))) if parent else 0
        tail, output = data.draw(tokens), data.draw(tokens)
        name = str(number)
        wholes[name] = (wholes[parent][:shared] if parent else []) + tail + output
        calls[name] = RecordedCall(
            call=name,
            sequence=number,
            state="finished",
            parent=parent,
            shared=shared,
            tail=np.array(tail, dtype=np.int32),
            prompt_tokens=shared + len(tail),
            has_output=True,
            output=np.array(output, dtype=np.int32),
            logprobs=np.zeros(len(output), dtype=np.float32),
            output_tokens=len(output),
            spans=(),
            imposed={},
        )
    history = CallHistory("e", calls)
    for name, whole in wholes.items():
        full = history.full_ids(name)
        assert full is not None
        assert full.tolist() == whole


@pytest.mark.parametrize("kept", [True, False])
def test_kept_kv_is_right_where_a_publish_kept_it(recorded: SyntheticRun, kept: bool) -> None:
    """A publish in place during the request explains newer tokens in an older segment."""
    publish = recorded.row(schema.transitions, cell=2, direction="publish")
    if kept:
        steps = [{"name": name, "seconds": 0.1, "ok": True} for name in ("close-door", "swap-weights", "open-door")]
        recorded.change(schema.transitions, {"transition": publish["transition"]}, steps=steps)
    call = recorded.row(schema.segments, cell=2, version=0, segment=0, ended="stop")
    key = {"call": call["call"]}
    when = {"started_at": publish["started_at"] - 1, "ended_at": publish["ended_at"] + 1}
    recorded.change(schema.segments, {**key, "segment": 0}, mixed_kv_tokens=1, **when)
    recorded.change(schema.calls, key, version_spans=[[0, call["output_tokens"] - 1], [2, 1]])
    codes = audit_records(recorded.engine, recorded.store, at_rest=True).codes()
    assert ("mixed-kv-unexplained" in codes) is not kept
    assert not {"token-version-differs", "request-went-back", "unpublished-version"} & set(codes)


def test_who_led_a_batch_is_none_of_its_satellites(recorded: SyntheticRun) -> None:
    """Cells 0 and 1 worked on each of the three batches with an update; after the first one cell 2 took over."""
    recorded.add(schema.cores, hand_over(recorded, 1, version=1) | {"cell": 2})
    report = audit_records(recorded.engine, recorded.store)
    assert report.ok
    assert report.figures["satellite_joins"] == 1 + 2 + 2

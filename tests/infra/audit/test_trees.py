"""The audit of micro-steps laid out as trees: sound ones pass, and every kind of fault is found in them too."""

from collections.abc import Callable

import numpy as np
import pytest

from infra.audit import audit_records
from infra.records import schema
from tests.infra.audit.planting import BATCH
from tests.infra.audit.recording import SyntheticRun

Change = Callable[[dict, dict], None]


def as_tree(run: SyntheticRun, micro_step: int) -> None:
    """Lay a synthetic micro-step out as a tree: the fork shares the first call's 10 tokens with the other path."""
    arrays, header = run.payload(BATCH, micro_step)
    whole = int(arrays["segment_offsets"][1])
    keep = np.r_[0:whole, whole + 10 : len(arrays["ids"])]
    changed = {name: arrays[name][keep] for name in arrays if not name.startswith("segment")}
    changed["segment_offsets"] = np.array([0, 10, whole, len(keep)], np.int32)
    changed["segment_parents"] = np.array([-1, 0, 0], np.int32)
    header["layout"] = "tree"
    for path, segment in zip(header["paths"], (1, 2), strict=True):
        path["segment"] = segment
        for span in path["spans"]:
            shift = 0 if span["start"] < whole else 10
            span["start"], span["end"] = span["start"] - shift, span["end"] - shift
    run.repack(BATCH, micro_step, header=header, **changed)
    key = {"batch": BATCH, "micro_step": micro_step}
    run.change(schema.micro_steps, key, tokens=len(keep))


@pytest.fixture
def trees(recorded: SyntheticRun) -> SyntheticRun:
    """A run whose first micro-step is a tree of three segments: [0, 10), [10, 15), [15, 20)."""
    as_tree(recorded, 0)
    return recorded


def found(run: SyntheticRun) -> set[str]:
    return set(audit_records(run.engine, run.store).found)


def test_a_sound_tree_passes(trees):
    report = audit_records(trees.engine, trees.store)
    assert report.found == {}


def doubled_target(arrays, header) -> None:
    header["paths"][1]["spans"].append(header["paths"][0]["spans"][0])


def lost_token(arrays, header) -> None:
    span = header["paths"][1]["spans"][0]
    place = span["end"] - 1
    span["end"] = place
    for name, nothing in (("targets", False), ("weights", 0), ("behaviour_logprobs", 0), ("versions", -1)):
        arrays[name][place] = nothing


def wrong_version(arrays, header) -> None:
    arrays["versions"][header["paths"][1]["spans"][0]["start"]] += 1


def swapped_logprobs(arrays, header) -> None:
    start = header["paths"][0]["spans"][0]["start"]
    arrays["behaviour_logprobs"][[start, start + 1]] = arrays["behaviour_logprobs"][[start + 1, start]]


def continued_another_segment(arrays, header) -> None:
    arrays["segment_parents"][2] = 1


def changed_shared_prefix(arrays, header) -> None:
    arrays["ids"][0] += 1


def positions_run_on(arrays, header) -> None:
    arrays["positions"][15:] = np.arange(15, 20)


def target_of_the_other_branch(arrays, header) -> None:
    header["paths"][1]["spans"].append(header["paths"][0]["spans"].pop())


def weighed_by_path(arrays, header) -> None:
    arrays["weights"][15:] *= 2


def weight_on_shared_context(arrays, header) -> None:
    arrays["weights"][2] = 0.1


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (doubled_target, {"target-trained-twice", "target-mask-differs"}),
        (lost_token, {"target-count-differs", "target-lost"}),
        (wrong_version, {"target-version-differs", "target-from-the-future"}),
        (swapped_logprobs, {"target-logprob-differs"}),
        (continued_another_segment, {"target-ids-differ", "positions-differ"}),
        (changed_shared_prefix, {"target-ids-differ"}),
        (positions_run_on, {"positions-differ"}),
        (target_of_the_other_branch, {"target-ids-differ", "target-mask-differs"}),
        (weighed_by_path, {"weight-differs"}),
        (weight_on_shared_context, {"weight-differs"}),
    ],
)
def test_a_planted_fault_is_found(trees, change: Change, codes: set[str]):
    arrays, header = trees.payload(BATCH, 0)
    change(arrays, header)
    trees.repack(BATCH, 0, header=header, **arrays)
    assert codes <= found(trees)


def test_a_segment_that_continues_a_later_one_is_no_payload(trees):
    arrays, _ = trees.payload(BATCH, 0)
    arrays["segment_parents"][1] = 2
    trees.repack(BATCH, 0, **arrays)
    assert "payload-missing" in found(trees)

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from infra.micro_steps import PackedMicroStep, TargetSpan, decode, encode, validate
from tests.workers.cell.training.material import pack, sampled
from workflows.messages.errors import InvalidInput


def two_paths() -> PackedMicroStep:
    return pack([sampled("p", 1.5, 4, 6), sampled("q", -0.5, 3, 2)], batch="r/batch/first/3", index=7, version=9)


def test_a_micro_step_survives_the_blob() -> None:
    step = two_paths()
    back = decode(encode(step))
    assert back.header == step.header
    for field in dataclasses.fields(step):
        if field.name != "header":
            assert np.array_equal(getattr(back, field.name), getattr(step, field.name))
            assert getattr(back, field.name).dtype == getattr(step, field.name).dtype
    assert (back.tokens, back.target_tokens, back.segment_spans()) == (15, 8, ((0, 10), (10, 15)))


def test_the_same_micro_step_is_the_same_blob() -> None:
    assert encode(two_paths()) == encode(two_paths())


@pytest.mark.parametrize("executions", [[], [sampled("p", 1.0, 5, 0)]])
def test_without_targets_it_is_valid(executions: list) -> None:
    assert decode(encode(pack(executions))).target_tokens == 0


def spoil(name: str, place: int, value: float) -> Callable[[PackedMicroStep], PackedMicroStep]:
    def change(step: PackedMicroStep) -> PackedMicroStep:
        array = getattr(step, name).copy()
        array[place] = value
        return dataclasses.replace(step, **{name: array})

    return change


def with_spans(*spans: tuple[int, int]) -> Callable[[PackedMicroStep], PackedMicroStep]:
    def change(step: PackedMicroStep) -> PackedMicroStep:
        first, second = step.header.paths
        given = tuple(TargetSpan(call="c", offset=0, start=start, end=end) for start, end in spans)
        paths = (first.model_copy(update={"spans": given}), second)
        return dataclasses.replace(step, header=step.header.model_copy(update={"paths": paths}))

    return change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (spoil("ids", 3, -1), "ids"),
        (spoil("positions", 10, 10), "positions"),
        (spoil("segment_offsets", 1, 0), "segment_offsets"),
        (spoil("segment_offsets", 2, 14), "segment_offsets"),
        (spoil("targets", 0, True), "targets"),
        (spoil("targets", 3, True), "versions"),
        (spoil("weights", 5, 0.3), "weights"),
        (spoil("weights", 5, np.nan), "weights"),
        (spoil("weights", 1, 0.25), "weights"),
        (spoil("behaviour_logprobs", 5, 0.5), "behaviour_logprobs"),
        (spoil("behaviour_logprobs", 5, -np.inf), "behaviour_logprobs"),
        (spoil("behaviour_logprobs", 0, -1.0), "behaviour_logprobs"),
        (spoil("versions", 5, -1), "versions"),
        (spoil("versions", 0, 3), "versions"),
        (with_spans((4, 9)), "paths"),
        (with_spans((4, 8), (7, 10)), "paths"),
        (with_spans((3, 10)), "paths"),
        (with_spans((4, 10), (13, 15)), "paths"),
        (lambda step: dataclasses.replace(step, ids=step.ids[:-1]), "positions"),
        (lambda step: dataclasses.replace(step, weights=step.weights.astype(np.float64)), "weights"),
    ],
)
def test_a_broken_rule_names_its_array(change: Callable[[PackedMicroStep], PackedMicroStep], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        validate(change(two_paths()))
    assert caught.value.field == field


def test_more_targets_than_the_execution_has_are_refused() -> None:
    step = two_paths()
    first, second = step.header.paths
    paths = (first.model_copy(update={"target_total": 5}), second)
    with pytest.raises(InvalidInput, match="more targets"):
        validate(dataclasses.replace(step, header=step.header.model_copy(update={"paths": paths})))


@pytest.mark.parametrize("blob", [b"", b"\x00" * 40, b'{"a": 1}' * 10])
def test_something_else_is_no_micro_step(blob: bytes) -> None:
    with pytest.raises(InvalidInput, match="payload"):
        decode(blob)


def tree_step() -> PackedMicroStep:
    """Two paths below one trunk: segments [0, 3), [3, 5) and [5, 8); places 2, 4, 6 and 7 are trained."""
    flat = pack([sampled("p", 1.0, 4, 4)], batch="r/batch/first/3", index=7, version=9)
    path = flat.header.paths[0]
    spans = [(2, 3), (4, 5), (6, 8)]
    targets = np.zeros(8, bool)
    for start, end in spans:
        targets[start:end] = True
    made = [TargetSpan(call="c", offset=0, start=start, end=end) for start, end in spans]
    paths = (
        path.model_copy(update={"segment": 1, "spans": tuple(made[:2])}),
        path.model_copy(update={"segment": 2, "spans": tuple(made[2:]), "branch": "sampled again"}),
    )
    return dataclasses.replace(
        flat,
        header=flat.header.model_copy(update={"layout": "tree", "paths": paths}),
        positions=np.array([0, 1, 2, 3, 4, 3, 4, 5], np.int32),
        segment_offsets=np.array([0, 3, 5, 8], np.int32),
        segment_parents=np.array([-1, 0, 0], np.int32),
        targets=targets,
        weights=np.where(targets, np.float32(0.25), np.float32(0)),
        behaviour_logprobs=np.where(targets, np.float32(-1), np.float32(0)),
        versions=np.where(targets, 9, -1),
    )


def test_a_tree_survives_the_blob_and_knows_its_shape() -> None:
    step = decode(encode(tree_step()))
    assert step.segment_spans() == ((0, 3), (3, 5), (5, 8))
    assert [step.ancestors(segment) for segment in range(3)] == [(0,), (0, 1), (0, 2)]
    assert step.predecessors().tolist() == [-1, 0, 1, 2, 3, 2, 5, 6]
    assert step.header.paths[1].branch == "sampled again"


def with_paths(*changes: dict) -> Callable[[PackedMicroStep], PackedMicroStep]:
    def change(step: PackedMicroStep) -> PackedMicroStep:
        paths = tuple(path.model_copy(update=new) for path, new in zip(step.header.paths, changes, strict=True))
        return dataclasses.replace(step, header=step.header.model_copy(update={"paths": paths}))

    return change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (spoil("segment_parents", 0, 0), "segment_parents"),
        (spoil("segment_parents", 1, 2), "segment_parents"),
        (spoil("segment_parents", 1, -2), "segment_parents"),
        (spoil("segment_parents", 2, 1), "positions"),
        (spoil("segment_parents", 2, -1), "positions"),
        (spoil("positions", 5, 5), "positions"),
        (spoil("segment_offsets", 1, 5), "segment_offsets"),
        (with_paths({"segment": 0}, {}), "paths"),
        (with_paths({"segment": 2}, {"segment": 1}), "paths"),
        (with_paths({}, {"segment": 3}), "paths"),
        (with_paths({"spans": (TargetSpan(call="c", offset=0, start=2, end=5),)}, {}), "paths"),
        (with_paths({}, {"spans": ()}), "paths"),
        (lambda step: dataclasses.replace(step, segment_parents=step.segment_parents[:-1]), "segment_offsets"),
        (
            lambda step: dataclasses.replace(step, header=step.header.model_copy(update={"layout": "flat"})),
            "segment_parents",
        ),
    ],
)
def test_a_broken_rule_of_trees_names_its_array(
    change: Callable[[PackedMicroStep], PackedMicroStep], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        validate(change(tree_step()))
    assert caught.value.field == field


def test_segments_are_depth_first() -> None:
    """A segment behind another branch may not go on where that branch was left."""
    step = tree_step()
    late = dataclasses.replace(
        step,
        segment_offsets=np.array([0, 3, 4, 5, 8], np.int32),
        segment_parents=np.array([-1, 0, 0, 1], np.int32),
        positions=np.array([0, 1, 2, 3, 3, 4, 5, 6], np.int32),
    )
    with pytest.raises(InvalidInput, match="depth-first"):
        validate(late)

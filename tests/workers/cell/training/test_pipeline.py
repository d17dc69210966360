"""Stages of one model, fed micro-steps whose number nobody knows: the gradient is that of one stage."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from infra.micro_steps import PackedMicroStep
from infra.weights.folder import load_weights
from tests.workers.cell.training.conftest import loaded
from tests.workers.cell.training.material import pack, sampled, write_policy
from tests.workers.cell.training.staged import pipeline_of_threads
from tests.workers.cell.training.trees import Tokens, Tree, trees
from workers.cell.training.parts import stages_of
from workers.cell.training.pipeline.front import Pipeline
from workers.cell.training.stream import SingleStageStream, target_logits
from workers.cell.training.weights_state import HeldWeights
from workflows.messages.errors import GyreError, InvalidInput, Permanent
from workflows.messages.loss import LossSettings
from workflows.messages.training import TokenMetrics

SETTINGS = LossSettings(clip_low=0.2, clip_high=0.28)
STEPS = [pack([sampled(f"e{k}", (-1.0) ** k, 3 + k, 4 + 3 * k, seed=k)], index=k) for k in range(6)]
UNCHECKED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
fewer = settings(deadline=None, max_examples=5, suppress_health_check=UNCHECKED)


@pytest.fixture(scope="module", params=[(True, 2, 2), (False, 2, 2), (True, 5, 4)], ids=str)
def cut(request: pytest.FixtureRequest) -> tuple[bool, int, int]:
    """Tied, layers, stages."""
    return request.param


@pytest.fixture(scope="module")
def folder(cut: tuple[bool, int, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("policy") / "model", tied=cut[0], layers=cut[1])


@pytest.fixture(scope="module")
def pipeline(folder: Path, cut: tuple[bool, int, int]) -> Iterator[Pipeline]:
    pipeline = pipeline_of_threads(folder, cut[2])
    ready(pipeline, folder)
    yield pipeline
    pipeline.close()


@pytest.fixture(scope="module")
def wanted(folder: Path) -> tuple[list[TokenMetrics], dict[str, Tensor]]:
    return whole_gradient(folder, STEPS)


def ready(pipeline: Pipeline, folder: Path) -> None:
    pipeline.whole.load_hf(load_weights(folder))
    pipeline.hold(HeldWeights(0, "base"))
    pipeline.allocate()


def staged_gradient(pipeline: Pipeline) -> dict[str, Tensor]:
    pipeline.drain()
    found = {name: torch.zeros_like(parameter) for name, parameter in pipeline.whole.named_parameters()}
    pipeline.gather(found)
    return found


def whole_gradient(folder: Path, steps: list[PackedMicroStep]) -> tuple[list[TokenMetrics], dict[str, Tensor]]:
    model = loaded(folder)
    metrics = [SingleStageStream(model).run(step, SETTINGS) for step in steps]
    return metrics, {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name] - tensor).norm() <= tolerance * tensor.norm() + 1e-12, name


@fewer
@given(pauses=st.lists(st.booleans(), min_size=6, max_size=6))
def test_whenever_the_data_pauses_the_gradient_is_the_same(
    pipeline: Pipeline, wanted: tuple[list[TokenMetrics], dict[str, Tensor]], pauses: list[bool]
) -> None:
    pipeline.zero()
    told: list[TokenMetrics | GyreError] = []
    for step, pause in zip(STEPS, pauses, strict=True):
        pipeline.feed(step, SETTINGS, told.append)
        while pause and pipeline.in_flight:
            pipeline.advance()
    metrics, gradient = wanted
    assert_same(staged_gradient(pipeline), gradient)
    assert [one.loss_sum for one in told if isinstance(one, TokenMetrics)] == pytest.approx(
        [one.loss_sum for one in metrics], rel=1e-6
    )


def test_stages_alternate_and_pause_at_the_same_point(pipeline: Pipeline) -> None:
    pipeline.zero()
    pipeline.usage()
    for step in STEPS[:4]:
        pipeline.feed(step, SETTINGS, lambda _: None)
    pipeline.drain()
    done = [[what for what, _, _ in usage.passes] for usage in pipeline.usage()]
    start = int(done[0][0][1:])
    first, *_, last = ([f"{what[0]}{int(what[1:]) - start}" for what in stage] for stage in done)
    if len(done) == 2:
        assert first == ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"]
    else:
        assert first == ["F0", "F1", "F2", "F3", "B0", "B1", "B2", "B3"]
    assert last == ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"]
    assert pipeline.in_flight == 0


@fewer
@given(tree=trees())
def test_trees_in_stages_give_what_flat_paths_give_in_one(pipeline: Pipeline, folder: Path, tree: Tree) -> None:
    tokens = Tokens(tree)
    pipeline.zero()
    metrics = pipeline.run(tokens.as_tree(), SETTINGS)
    (wanted_metrics,), wanted = whole_gradient(folder, [tokens.as_paths()])
    assert metrics.loss_sum == pytest.approx(wanted_metrics.loss_sum, rel=1e-5, abs=1e-7)
    found = staged_gradient(pipeline)
    if not wanted:
        assert not any(tensor.any() for tensor in found.values())
        return
    assert_same(found, wanted, 1e-5)


def test_a_micro_step_is_refused_whole_and_the_others_stay(pipeline: Pipeline, folder: Path) -> None:
    bad = pack([replace(sampled("bad", -3e38, 3, 5), behaviour=(-30.0,) * 5)], index=9)
    pipeline.zero()
    told: list[TokenMetrics | GyreError] = []
    for step in (STEPS[0], bad, STEPS[1]):
        pipeline.feed(step, SETTINGS, told.append)
    assert_same(staged_gradient(pipeline), whole_gradient(folder, [STEPS[0], STEPS[1]])[1])
    assert isinstance(told[1], Permanent)
    assert "has loss" in str(told[1])


def test_a_wrong_token_is_refused_before_any_stage_sees_it(pipeline: Pipeline) -> None:
    step = pack([sampled("e", 1.0, 3, 5)])
    step.ids[2] = 10_000
    with pytest.raises(InvalidInput, match="token id 10000"):
        pipeline.feed(step, SETTINGS, lambda _: None)
    assert pipeline.in_flight == 0


def test_without_targets_nothing_runs(pipeline: Pipeline) -> None:
    pipeline.usage()
    assert pipeline.run(pack([sampled("e", 1.0, 5, 0)]), SETTINGS).tokens == 0
    assert not pipeline.usage()[0].passes


def test_a_look_has_the_logits_of_one_stage(pipeline: Pipeline, folder: Path) -> None:
    with torch.no_grad():
        wanted = target_logits(loaded(folder), STEPS[3])
    assert torch.equal(pipeline.look(STEPS[3]), wanted)


def test_new_weights_reach_every_stage(pipeline: Pipeline, folder: Path) -> None:
    other = {name: tensor * 1.01 for name, tensor in load_weights(folder).items()}
    pipeline.whole.load_hf(other)
    pipeline.hold(HeldWeights(1, "other"))
    model = loaded(folder)
    model.load_hf(other)
    try:
        with torch.no_grad():
            assert torch.equal(pipeline.look(STEPS[2]), target_logits(model, STEPS[2]))
    finally:
        ready(pipeline, folder)


def test_layers_are_shared_out_and_nothing_is_lost(policy: Path) -> None:
    arch = loaded(policy).arch
    names = {name for part in stages_of(arch, 2) for name in part.shapes(arch)}
    assert names == {*dict(loaded(policy).named_parameters()), "output_layer.weight"}
    with pytest.raises(InvalidInput, match="3 stages cannot share 2 layers"):
        stages_of(arch, 3)

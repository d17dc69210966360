"""A set saved from one pipeline layout loads into another and back: all weights and moments, to the last bit."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from infra.checkpoints import Checkpoint, CheckpointStore
from infra.checkpoints.contents import OPTIMIZER_FILE
from infra.weights.architecture import Architecture
from infra.weights.folder import WEIGHTS_FILE, load_weights
from infra.weights.names import to_hf
from tests.workers.cell.training.rig import BOOT, Rig
from workers.cell.training.checkpointing import load_checkpoint, save_checkpoint
from workers.cell.training.model import build_model
from workers.cell.training.optimizer import AdamSettings, CoreOptimizer
from workers.cell.training.parts import HEAD, stages_of
from workers.cell.training.whole import HostPolicy, WholePolicy
from workflows.messages import training as m


@pytest.fixture(params=["tied", "untied"])
def trained(
    request: pytest.FixtureRequest, policy: Path, untied_policy: Path, tmp_path: Path
) -> tuple[Path, Checkpoint]:
    """Model folder and the checkpoint of two updates by a core of one stage."""
    folder = policy if request.param == "tied" else untied_policy
    rig = Rig(tmp_path, folder)
    for number, batch in enumerate("ab"):
        reply = rig.core.combine(rig.batch(batch=batch, seed=number))
        rig.core.commit(m.Commit(batch=batch, version=reply.version, **BOOT))
    return folder, CheckpointStore(tmp_path / "checkpoints").last_complete()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def step_once(model: WholePolicy, optimizer: CoreOptimizer) -> None:
    """An update that touches every parameter; its gradient follows from names and weights alone."""
    gradients = {name: (parameter.detach() * 0.01 + 0.001).clone() for name, parameter in model.named_parameters()}
    optimizer.step(gradients, AdamSettings(1e-3, (0.9, 0.95), 0.1))


def test_one_stage_to_two_and_back(trained: tuple[Path, Checkpoint], tmp_path: Path) -> None:
    folder, first = trained
    arch = Architecture.from_folder(folder)
    two = HostPolicy(arch)  # what the first of two stages keeps
    moments = CoreOptimizer(two)
    load_checkpoint(first, two, moments)
    back = save_checkpoint(CheckpointStore(tmp_path / "two"), first.meta, two, moments, folder)
    for name in (WEIGHTS_FILE, OPTIMIZER_FILE):
        assert back.files[name] == first.files[name]
    one = build_model(arch)
    optimizer = CoreOptimizer(one)
    load_checkpoint(back, one, optimizer)
    assert same(one.hf_weights(), load_weights(first.folder))
    assert optimizer.state()
    assert same(optimizer.state(), moments.state())
    step_once(one, optimizer)
    step_once(two, moments)
    assert (optimizer.steps, moments.steps) == (3, 3)
    assert same(one.hf_weights(), two.hf_weights())
    assert same(optimizer.state(), moments.state())


def test_each_stage_takes_its_part_and_together_they_are_the_whole(trained: tuple[Path, Checkpoint]) -> None:
    folder, checkpoint = trained
    arch, weights = Architecture.from_folder(folder), load_weights(checkpoint.folder)
    whole: dict[str, Tensor] = {}
    for part in stages_of(arch, 2):
        stage = build_model(arch, part)
        stage.load_hf(weights)
        held = {name: parameter.detach() for name, parameter in stage.named_in_whole().items()}
        assert not whole.keys() & held.keys()
        whole |= held
    assert same(to_hf(arch, whole), weights)
    if arch.tied:
        assert torch.equal(whole[HEAD], weights["model.embed_tokens.weight"])


def test_a_core_goes_on_with_other_stages_and_replicas_and_back(policy: Path, tmp_path: Path) -> None:
    """One stage, two, two replicas of one, one again."""
    rig = Rig(tmp_path, policy)

    def update(batch: str, seed: int) -> tuple[m.CombineReply, dict[str, Tensor]]:
        reply = rig.core.combine(rig.batch(batch=batch, seed=seed))
        rig.core.commit(m.Commit(batch=batch, version=reply.version, **BOOT))
        return reply, moments_of(rig)

    first, moments = update("a", 0)
    for number, shape in enumerate(((2, 1), (1, 2), (1, 1)), start=1):
        rig.stages = (shape,)
        rig.core = rig.actor(0)
        restored = rig.core.restore_checkpoint(m.RestoreCheckpoint(**BOOT))
        rig.core.resume(m.Resume(**BOOT))
        assert (restored.version, restored.checksum) == (number, first.checksum)
        assert same(moments_of(rig), moments)
        first, moments = update(f"b{number}", number)
        assert (first.version, rig.core.status().optimizer_steps) == (number + 1, number + 1)


def moments_of(rig: Rig) -> dict[str, Tensor]:
    assert rig.core._optimizer is not None
    return {name: tensor.clone() for name, tensor in rig.core._optimizer.state().items()}

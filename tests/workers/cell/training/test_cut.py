"""A batch's gradient and update do not depend on how it was cut or who computed it (field case 35)."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.workers.cell.training import oracle
from tests.workers.cell.training.rig import BOOT, Rig, arch_and_weights, gradient_of, twelve_executions
from workers.cell.training.actor import TrainingActor
from workflows.messages import training as m
from workflows.messages.errors import Fenced, TransferFailed


@pytest.fixture
def rig(tmp_path: Path, policy: Path) -> Rig:
    return Rig(tmp_path, policy)


@pytest.fixture(scope="module")
def wanted(policy: Path) -> dict[str, Tensor]:
    """The summed gradient (V = 1) by the plain oracle."""
    arch, weights = arch_and_weights(policy)
    return oracle.batch_gradient(arch, weights, twelve_executions(), 1, 0.2, 0.28)[1]


def assert_close(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        scale = tensor.abs().max().item()
        assert torch.allclose(found[name], tensor, rtol=1e-4, atol=2e-5 * max(scale, 1.0)), name


def accumulate(rig: Rig, shares: dict[TrainingActor, list[int]]) -> list[m.SealReply]:
    """One micro-step per execution; each actor computes the indices it is given."""
    executions = twelve_executions()
    for actor, indices in shares.items():
        rig.open(actor)
        for index in indices:
            rig.run(actor, [executions[index]], index=index)
    return [rig.seal(actor) for actor in shares]


def total_of(actors: list[TrainingActor]) -> dict[str, Tensor]:
    gradients = [gradient_of(actor) for actor in actors]
    return {name: torch.stack([gradient[name] for gradient in gradients]).sum(0) for name in gradients[0]}


def test_one_cell_one_micro_step(rig: Rig, wanted: dict[str, Tensor]) -> None:
    rig.open(rig.core)
    rig.run(rig.core, twelve_executions())
    assert_close(gradient_of(rig.core), wanted)


def test_one_cell_twelve_micro_steps(rig: Rig, wanted: dict[str, Tensor]) -> None:
    accumulate(rig, {rig.core: list(range(12))})
    assert_close(gradient_of(rig.core), wanted)


def test_core_and_satellite(rig: Rig, wanted: dict[str, Tensor]) -> None:
    satellite = rig.satellite()
    accumulate(rig, {rig.core: [0, 5, 11], satellite: [1, 2, 3, 4, 6, 7, 8, 9, 10]})
    assert_close(total_of([rig.core, satellite]), wanted)


def test_the_update_is_the_same_whoever_computed(tmp_path: Path, policy: Path) -> None:
    shares = {
        "alone": ([list(range(12))], {}),
        "shared": ([[0, 5, 11], [1, 2, 3, 4, 6, 7, 8, 9, 10]], {}),
        "late": ([list(range(11)), [11]], {}),
        "idle satellite": ([list(range(12)), []], {}),
        "satellite does it all": ([[], list(range(12))], {}),
    }
    norms, weights = {}, {}
    for name, (indices, _) in shares.items():
        rig = Rig(tmp_path / name, policy)
        actors = [rig.core] + [rig.satellite(cell) for cell in range(1, len(indices))]
        sealed = accumulate(rig, dict(zip(actors, indices, strict=True)))
        reply = rig.core.combine(rig.combine_request(sealed, valid=12))
        assert (reply.version, reply.micro_steps, reply.stepped) == (1, 12, True)
        norms[name], weights[name] = reply.grad_norm, rig.core._model.hf_weights()
    for name in shares:
        assert norms[name] == pytest.approx(norms["alone"], rel=1e-4), name
        assert_close(weights[name], weights["alone"])


def test_a_satellite_that_dies_loses_only_its_own(rig: Rig, wanted: dict[str, Tensor]) -> None:
    executions = twelve_executions()
    satellite = rig.satellite()
    core_seal, lost = accumulate(rig, {rig.core: list(range(9)), satellite: [9, 10, 11]})
    satellite._endpoint.unregister(satellite._gradients._region)  # pyright: ignore[reportOptionalMemberAccess]
    satellite._gradients.flat.fill_(7.0)  # pyright: ignore[reportOptionalMemberAccess]
    with pytest.raises(TransferFailed):
        rig.core.combine(rig.combine_request([core_seal, lost], valid=12))
    assert rig.core.status().phase is m.BatchPhase.SEALED
    rig.open(rig.core)  # its micro-steps come back into the stream
    for index in (9, 10, 11):
        assert not rig.run(rig.core, [executions[index]], index=index, attempt=2).repeated
    sealed = rig.seal(rig.core)
    assert [(entry.index, entry.attempt) for entry in sealed.accumulated] == [
        *((index, 1) for index in range(9)),
        *((index, 2) for index in range(9, 12)),
    ]
    assert_close(gradient_of(rig.core), wanted)
    assert rig.core.combine(rig.combine_request([sealed], valid=12)).micro_steps == 12


def test_a_micro_step_claimed_by_two_cells_is_never_summed_twice(rig: Rig) -> None:
    satellite = rig.satellite()
    sealed = accumulate(rig, {rig.core: [0, 1], satellite: [1, 2]})
    with pytest.raises(Fenced, match="micro-step 1 is claimed by cells 0 and 1"):
        rig.core.combine(rig.combine_request(sealed, valid=3))


def test_a_set_other_than_the_accepted_one_is_refused(rig: Rig) -> None:
    (sealed,) = accumulate(rig, {rig.core: [0, 1, 2]})
    accepted = sealed.model_copy(update={"accumulated": sealed.accumulated[:2]})
    with pytest.raises(Fenced, match="not the one the batch accepted"):
        rig.core.combine(rig.combine_request([accepted], valid=3))


def test_a_gradient_of_another_version_or_boot_is_refused(rig: Rig) -> None:
    satellite = rig.satellite()
    core_seal, sealed = accumulate(rig, {rig.core: [0], satellite: [1]})
    assert sealed.manifest is not None
    for change in ({"version": 5}, {"boot_epoch": 2}):
        other = sealed.model_copy(update={"manifest": sealed.manifest.model_copy(update=change)})
        with pytest.raises(Fenced, match="offers a gradient"):
            rig.core.combine(rig.combine_request([core_seal, other], valid=2))


def test_the_gradient_is_divided_once_by_valid_executions(rig: Rig) -> None:
    request = rig.batch()
    total = torch.cat([tensor.flatten() for tensor in gradient_of(rig.core).values()])
    reply = rig.core.combine(request.model_copy(update={"valid_executions": 8}))
    assert reply.grad_norm == pytest.approx(total.norm().item() / 8, rel=1e-5)


def test_satellites_let_go_after_the_commit(rig: Rig) -> None:
    satellite = rig.satellite()
    accumulate(rig, {satellite: [3]})
    reply = satellite.commit(m.Commit(batch="b", version=1, **BOOT))
    assert reply.phase is m.BatchPhase.CLOSED
    assert not any(tensor.any() for tensor in gradient_of(satellite).values())
    with pytest.raises(Fenced, match="has ended"):
        rig.open(satellite)

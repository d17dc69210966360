"""A cell takes over as the core: it holds what the old core held, to the last byte, and goes on as that would have."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.workers.cell.training.material import sampled
from tests.workers.cell.training.rig import BOOT, Rig
from tests.workers.cell.training.test_paced_actor import PacedRig
from workers.cell.training import random_state
from workers.cell.training.actor import TrainingActor
from workflows.messages import training as m
from workflows.messages.errors import CheckpointUnusable, Fenced, InvalidInput

pytestmark = pytest.mark.slow


def bytes_of(actor: TrainingActor) -> dict[str, bytes]:
    """Weights, moments and generators."""
    assert actor._optimizer is not None
    named = {**actor._model.hf_weights(), **actor._optimizer.state(), **random_state.capture()}
    return {name: tensor.detach().cpu().contiguous().numpy().tobytes() for name, tensor in named.items()}


def trained(rig: Rig, updates: int = 2) -> m.CombineReply:
    """Updates of the core, committed."""
    for number in range(updates):
        reply = rig.core.combine(rig.batch(batch=f"b{number}", seed=number))
        rig.core.commit(m.Commit(batch=f"b{number}", **BOOT))
    return reply


def take_over(heir: TrainingActor, reply: m.CombineReply) -> m.RestoreReply:
    request = m.RestoreCheckpoint(version=reply.version, checksum=reply.checksum, as_core=True, **BOOT)
    return heir.restore_checkpoint(request)


def update(rig: Rig, actor: TrainingActor, batch: str) -> m.CombineReply:
    """One more batch, of this actor's work alone."""
    rig.open(actor, batch)
    rig.run(actor, [sampled("p", 1.0, 4, 9, 7), sampled("q", -1.0, 5, 11, 7)], batch=batch)
    sealed = rig.seal(actor, batch)
    request = rig.combine_request([sealed], valid=2, batch=batch)
    return actor.combine(request.model_copy(update={"own": sealed.accumulated, "participants": ()}))


@pytest.mark.parametrize("stages", [(), ((1, 1), (2, 1)), ((2, 1), (1, 1))], ids=["alike", "to two stages", "from two"])
def test_the_heir_holds_what_the_core_held_to_the_last_byte(tmp_path: Path, policy: Path, stages) -> None:
    rig = Rig(tmp_path, policy, stages=stages)
    reply = trained(rig)
    before = bytes_of(rig.core)
    heir = rig.satellite()
    assert (heir.status().checksum, heir.status().optimizer_steps) == (reply.checksum, None)
    assert any(np.frombuffer(before[name], np.float32).any() for name in before if name.startswith("exp_avg/"))
    _ = random.random(), np.random.rand(), torch.rand(1)
    restored = take_over(heir, reply)
    assert bytes_of(heir) == before
    assert (restored.version, restored.checkpoint) == (2, reply.checkpoint)
    assert (heir.status().optimizer_steps, heir.status().checksum) == (2, reply.checksum)


def test_both_would_go_on_alike(tmp_path: Path, policy: Path) -> None:
    rig = Rig(tmp_path, policy)
    reply = trained(rig)
    heir = rig.satellite()
    take_over(heir, reply)
    theirs, ours = update(rig, heir, "next"), update(rig, rig.core, "next")
    assert (theirs.version, theirs.checksum, theirs.gradient_checksum) == (3, ours.checksum, ours.gradient_checksum)
    assert bytes_of(heir) == bytes_of(rig.core)
    assert theirs.checkpoint is not None
    assert theirs.checkpoint != ours.checkpoint  # of the same version, another attempt: one of them will be committed


@pytest.fixture(params=[Rig, PacedRig], ids=["real", "paced"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, policy: Path) -> Rig:
    return request.param(tmp_path, policy)


def test_whoever_led_refuses_what_comes_late(rig: Rig) -> None:
    reply = trained(rig)
    late = rig.batch(batch="late")
    take_over(rig.satellite(), reply)
    rig.core.lay_down(m.LayDown(**BOOT))
    status = rig.core.status()
    assert (status.optimizer_steps, status.batch, status.checksum) == (None, None, reply.checksum)
    with pytest.raises(InvalidInput, match="only the core"):
        rig.core.combine(late)
    rig.core.lay_down(m.LayDown(**BOOT))  # as after a lost answer


def test_an_update_that_nobody_recorded_goes_with_the_office(rig: Rig) -> None:
    reply = trained(rig)
    rig.core.combine(rig.batch(batch="lost"))
    rig.core.lay_down(m.LayDown(**BOOT))
    assert (rig.core.status().version, rig.core.status().checksum) == (2, reply.checksum)


def test_what_fails_to_take_over_stays_a_satellite(rig: Rig) -> None:
    """Nothing half done is left for the next attempt to take for the whole."""
    reply = trained(rig)
    heir = rig.satellite()
    with pytest.raises(CheckpointUnusable):
        heir.restore_checkpoint(m.RestoreCheckpoint.model_validate({"version": 9, "as_core": True, **BOOT}))
    assert (heir.status().optimizer_steps, heir.status().checksum) == (None, reply.checksum)
    with pytest.raises(Fenced):
        heir.restore_base(m.RestoreBase.model_validate({"version": 0, "as_core": True, **BOOT}))
    assert heir.status().optimizer_steps is None
    take_over(heir, reply)
    assert heir.status().optimizer_steps == 2


def test_a_batch_that_the_heir_is_in_is_dropped(rig: Rig) -> None:
    reply = trained(rig)
    heir = rig.satellite()
    rig.open(heir, "open")
    rig.run(heir, [sampled("p", 1.0, 4, 9)], batch="open")
    take_over(heir, reply)
    assert (heir.status().batch, heir.status().accumulated) == (None, 0)
    rig.open(heir, "open")
    assert heir.status().accumulated == 0


def test_at_the_base_model_the_optimizer_is_new(rig: Rig) -> None:
    heir = rig.satellite()
    heir.restore_base(m.RestoreBase(version=0, checksum=rig.start.checksum, as_core=True, **BOOT))
    assert (heir.status().optimizer_steps, heir.status().checksum) == (0, rig.start.checksum)
    assert update(rig, heir, "first").version == 1

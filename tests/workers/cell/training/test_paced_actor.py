"""The paced trainer: the real one's protocol and books, time by tokens, nothing learnt."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.actor.wire import ROUTES
from infra.checkpoints import CheckpointStore
from infra.settings.fleet import PacedTrainer
from infra.transfer import PublishedBuffers
from infra.weights.checksum import weights_checksum
from infra.weights.folder import folder_checksum, load_weights
from infra.weights.plain import arrays_checksum, load_arrays
from tests.workers.cell.training.material import pack, sampled
from tests.workers.cell.training.rig import BOOT, Rig, endpoint
from workers.cell.training.exposure import Exposure
from workers.cell.training.loss import micro_step_loss
from workers.cell.training.model import PolicyModel
from workers.cell.training.paced import PacedActor
from workers.cell.training.paced.actor import metrics_of, seconds_of
from workers.cell.training.paced.gradient import drawn
from workers.cell.training.settings import ActorSettings
from workers.cell.training.stream import target_logits
from workflows.messages import training as m
from workflows.messages.errors import Fenced, InvalidSpec, StillHeld
from workflows.messages.loss import LossSettings


class PacedRig(Rig):
    """The rig of the real actor, with paced ones."""

    pace = PacedTrainer(tokens_per_second=1e9)

    def actor(self, cell: int) -> PacedActor:  # pyright: ignore[reportIncompatibleMethodOverride]
        settings = ActorSettings(
            cell=cell,
            boot_epoch=1,
            model=self.policy,
            checkpoints=self.folder / "checkpoints",
            objects_url=f"file://{self.folder}/objects",
        )
        return PacedActor(settings, self.pace, endpoint(cell))


@pytest.fixture
def rig(tmp_path: Path, policy: Path) -> PacedRig:
    return PacedRig(tmp_path, policy)


def test_arrays_have_the_checksum_of_the_same_tensors(policy: Path, untied_policy: Path) -> None:
    for folder in (policy, untied_policy):
        assert arrays_checksum(load_arrays(folder)) == weights_checksum(load_weights(folder))


def test_time_follows_the_tokens_of_the_payload() -> None:
    packed = pack([sampled("a", 1.0, 30, 50), sampled("b", -1.0, 10, 10)])
    assert seconds_of(packed, PacedTrainer(tokens_per_second=200.0)) == pytest.approx(100 / 200)


def test_micro_step_takes_its_time(rig: PacedRig) -> None:
    rig.core._pace = PacedTrainer(tokens_per_second=400.0)  # pyright: ignore[reportAttributeAccessIssue]
    rig.open(rig.core)
    began = time.monotonic()
    reply = rig.run(rig.core, [sampled("a", 1.0, 5, 15)])
    assert time.monotonic() - began >= 20 / 400
    assert reply.metrics.tokens == 15
    assert reply.metrics.computed_tokens == 20


def test_tokens_are_counted_like_the_real_ones(rig: PacedRig, model: PolicyModel) -> None:
    """Everything that the payload alone decides."""
    step = pack([sampled("a", 1.0, 5, 15), sampled("b", -1.0, 3, 4)])
    real = micro_step_loss(target_logits(model, step), step, LossSettings()).metrics
    for name in ("tokens", "computed_tokens", "path_tokens", "versions"):
        assert getattr(metrics_of(step), name) == getattr(real, name), name
    assert real.path_tokens
    assert real.versions


def test_it_has_the_whole_protocol_and_refuses_groups(rig: PacedRig) -> None:
    assert all(callable(getattr(rig.core, name, None)) for name in ROUTES)
    rig.batch()
    group = m.CombineGroup(members=((0, 1), (1, 1)), meeting="127.0.0.1:1/0")
    with pytest.raises(InvalidSpec, match="no groups"):
        rig.core.contribute(m.Contribute(batch="b", group=group, **BOOT))


def test_a_batch_without_any_weight_makes_no_update(rig: PacedRig) -> None:
    before = rig.core.status().checksum
    rig.open(rig.core)
    rig.run(rig.core, [sampled("a", 0.0, 5, 15)])
    reply = rig.core.combine(rig.combine_request([rig.seal(rig.core)], valid=1))
    assert (reply.stepped, reply.version, reply.checksum, reply.checkpoint) == (False, 0, before, None)


def test_a_batch_over_two_cells_becomes_a_durable_update(rig: PacedRig) -> None:
    satellite = rig.satellite()
    for actor in (rig.core, satellite):
        rig.open(actor)
    rig.run(rig.core, [sampled("a", 1.0, 4, 9)], index=0)
    rig.run(satellite, [sampled("b", -1.0, 4, 9)], index=1)
    request = rig.combine_request([rig.seal(rig.core), rig.seal(satellite)], valid=2)
    reply = rig.core.combine(request)
    assert reply.stepped
    assert (reply.version, reply.micro_steps) == (1, 2)
    assert rig.core.combine(request) == reply
    rig.core.commit(m.Commit(batch="b", version=1, **BOOT))
    committed = CheckpointStore(rig.folder / "checkpoints").committed()
    assert committed is not None
    assert committed.meta.checksum == reply.checksum == folder_checksum(committed.folder)
    satellite.commit(m.Commit(batch="b", version=1, **BOOT))
    rig.hand_weights(satellite)
    assert satellite.status().checksum == reply.checksum


def test_the_sum_does_not_depend_on_which_cell_computed(tmp_path: Path, policy: Path) -> None:
    found = []
    for name, split in (("one", False), ("two", True)):
        rig = PacedRig(tmp_path / name, policy)
        second = rig.satellite() if split else rig.core
        for actor in {rig.core, second}:
            rig.open(actor)
        rig.run(rig.core, [sampled("a", 1.0, 4, 9)], index=0)
        rig.run(second, [sampled("b", -1.0, 4, 9)], index=1)
        sealed = [rig.seal(actor) for actor in {rig.core, second}]
        rig.core.combine(rig.combine_request(sealed, valid=2))
        found.append(rig.core._weights._flat)  # pyright: ignore[reportAttributeAccessIssue]
    np.testing.assert_allclose(found[0], found[1], atol=1e-7)
    assert not np.array_equal(found[0], np.zeros_like(found[0]))


def test_a_micro_step_counts_once_and_other_attempts_are_fenced(rig: PacedRig) -> None:
    rig.open(rig.core)
    first = rig.run(rig.core, [sampled("a", 1.0, 4, 9)], attempt=2)
    again = rig.run(rig.core, [sampled("a", 1.0, 4, 9)], attempt=3)
    assert (first.repeated, again.repeated) == (False, True)
    with pytest.raises(Fenced):
        rig.run(rig.core, [sampled("a", 1.0, 4, 9)], attempt=1)
    buffer = rig.core._sum  # pyright: ignore[reportAttributeAccessIssue]
    sealed = rig.seal(rig.core)
    assert [entry.attempt for entry in sealed.accumulated] == [3]
    assert buffer is not None
    assert np.isclose(buffer.flat.std(), 1.0, atol=0.05)


def test_an_update_that_nobody_recorded_is_taken_back(rig: PacedRig) -> None:
    request = rig.batch()
    before = rig.core.status().checksum
    reply = rig.core.combine(request)
    rig.core.take_back(m.BatchRequest(batch="b", **BOOT))
    assert (rig.core.status().version, rig.core.status().checksum) == (0, before)
    assert rig.core.combine(request).checksum == reply.checksum


def update(rig: PacedRig, version: int) -> None:
    """One committed update of the core, to `version`."""
    batch = f"b{version}"
    rig.core.combine(rig.batch(batch=batch, seed=version))
    rig.core.commit(m.Commit(batch=batch, version=version, **BOOT))


def test_a_snapshot_whose_slot_is_being_read_is_refused_and_not_waited_for(
    rig: PacedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = rig.core.expose_snapshot(m.ExposeSnapshot(version=0, **BOOT))
    update(rig, 1)
    rig.core.release_snapshot(
        m.ReleaseSnapshot(pin=rig.core.expose_snapshot(m.ExposeSnapshot(version=1, **BOOT)).pin, **BOOT)
    )
    update(rig, 2)
    patience: list[float] = []
    free_slot = PublishedBuffers._free_slot

    def asked(self: PublishedBuffers, allocate: Any, deadline: float) -> Any:
        patience.append(deadline - self._clock())
        return free_slot(self, allocate, deadline)

    monkeypatch.setattr(PublishedBuffers, "_free_slot", asked)
    with pytest.raises(StillHeld, match="the slot that is to be overwritten"):
        rig.core.expose_snapshot(m.ExposeSnapshot(version=2, **BOOT))
    assert len(patience) == 1
    assert patience[0] <= 0, "it would wait for the reader"
    rig.core.release_snapshot(m.ReleaseSnapshot(pin=old.pin, **BOOT))
    now = rig.core.expose_snapshot(m.ExposeSnapshot(version=2, **BOOT))
    assert (now.version, now.checksum) == (2, rig.core.status().checksum)


def test_other_weights_of_the_same_version_are_copied_anew() -> None:
    """A batch combined again with other members gives the same version, other weights."""
    held = np.zeros(3, dtype=np.float32)
    exposed = Exposure(endpoint(0), 1, 3, allocate=lambda: np.empty_like(held), fill=lambda flat: np.copyto(flat, held))
    first = exposed.expose(1, "a")
    held[:] = 7
    second, again = exposed.expose(1, "b"), exposed.expose(1, "b")
    into = np.empty_like(held)
    for reply, value in ((first, 0), (second, 7), (again, 7)):
        endpoint(1).read(reply.manifest, {"weights": into}, timeout_seconds=120)
        assert into.tolist() == [value] * 3
        exposed.release(reply.pin)
    exposed.close()
    assert (exposed.bytes, exposed.pins) == (0, 0)


def test_memory_is_given_up_only_without_a_batch(rig: PacedRig) -> None:
    rig.open(rig.core)
    with pytest.raises(StillHeld):
        rig.core.release(m.Release(**BOOT))
    rig.core.discard(m.BatchRequest(batch="b", **BOOT))
    assert rig.core.release(m.Release(**BOOT)).gradient_bytes == 0


def test_what_a_payload_adds_follows_from_the_payload() -> None:
    first, again, other = drawn("ab" * 32, 100), drawn("ab" * 32, 100), drawn("cd" * 32, 100)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.slow
def test_neither_the_paced_trainer_nor_its_cell_worker_brings_torch() -> None:
    """Eight cells of them must fit the memory of a small machine."""
    code = "import sys, workers.cell.training.paced, workers.cell.training.server, workers.cell.worker\n"
    code += "assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)

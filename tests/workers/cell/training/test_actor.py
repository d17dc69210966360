"""One actor's life: batches, updates, checkpoints, snapshots, fencing."""

import json
from pathlib import Path

import pytest
import torch

from infra.checkpoints import CheckpointStore
from infra.weights.checksum import weights_checksum
from infra.weights.folder import folder_checksum
from tests.workers.cell.training.material import pack, put, sampled
from tests.workers.cell.training.rig import BOOT, CLIP, Rig, gradient_of
from workflows.messages import training as m
from workflows.messages.errors import (
    ChecksumMismatch,
    Fenced,
    InvalidInput,
    Permanent,
    StillHeld,
    VersionMismatch,
)


@pytest.fixture
def rig(tmp_path: Path, policy: Path) -> Rig:
    return Rig(tmp_path, policy)


def checksum_of(rig: Rig) -> str:
    return weights_checksum(rig.core._model.hf_weights())


def moments_of(rig: Rig) -> dict[str, torch.Tensor]:
    assert rig.core._optimizer is not None
    return {name: tensor.clone() for name, tensor in rig.core._optimizer.state().items()}


class TestMicroSteps:
    def test_the_same_attempt_again_is_answered_and_not_added(self, rig: Rig) -> None:
        rig.open(rig.core)
        executions = [sampled("p", 1.0, 4, 9)]
        first = rig.run(rig.core, executions)
        before = gradient_of(rig.core)
        again = rig.run(rig.core, executions)
        assert (first.repeated, again.repeated) == (False, True)
        assert again.metrics == first.metrics
        assert all(torch.equal(before[name], tensor) for name, tensor in gradient_of(rig.core).items())

    def test_a_later_attempt_takes_over_and_an_earlier_one_is_fenced(self, rig: Rig) -> None:
        rig.open(rig.core)
        executions = [sampled("p", 1.0, 4, 9)]
        rig.run(rig.core, executions, attempt=2)
        assert rig.run(rig.core, executions, attempt=3).attempt == 3
        with pytest.raises(Fenced, match="attempt 2"):
            rig.run(rig.core, executions, attempt=2)
        assert rig.seal(rig.core).accumulated == (m.Accumulated(index=0, attempt=3),)

    def test_another_payload_under_the_same_index_is_fenced(self, rig: Rig) -> None:
        rig.open(rig.core)
        rig.run(rig.core, [sampled("p", 1.0, 4, 9)])
        with pytest.raises(Fenced, match="another payload"):
            rig.run(rig.core, [sampled("q", 1.0, 4, 9, seed=9)], attempt=2)

    def test_another_batch_and_a_sealed_one_are_fenced(self, rig: Rig) -> None:
        rig.open(rig.core)
        with pytest.raises(Fenced, match="other is not open"):
            rig.run(rig.core, [sampled("p", 1.0, 4, 9)], batch="other")
        rig.seal(rig.core)
        with pytest.raises(Fenced, match="b is sealed"):
            rig.run(rig.core, [sampled("p", 1.0, 4, 9)])

    def test_work_queued_before_a_discard_is_fenced(self, rig: Rig) -> None:
        rig.open(rig.core)
        queued_at = rig.core.generation
        rig.core.discard(m.BatchRequest(batch="b", **BOOT))
        rig.open(rig.core)
        step = put(rig.objects, pack([sampled("p", 1.0, 4, 9)]))
        request = m.RunMicroStep(micro_step=step, attempt=1, **CLIP, **BOOT)
        with pytest.raises(Fenced, match="has been discarded"):
            rig.core.run_micro_step(request, queued_at)
        with pytest.raises(Fenced, match="given up"):
            rig.core.run_micro_step(request, rig.core.generation, abandoned=lambda: True)
        assert rig.seal(rig.core).accumulated == ()

    def test_a_refused_micro_step_leaves_the_sum_as_it_was(self, rig: Rig) -> None:
        rig.open(rig.core)
        rig.run(rig.core, [sampled("p", 1.0, 4, 9)])
        before = gradient_of(rig.core)
        bad = pack([sampled("q", 1.0, 4, 9)], index=1)
        bad.ids[0] = 10_000
        request = m.RunMicroStep(micro_step=put(rig.objects, bad), attempt=1, **CLIP, **BOOT)
        with pytest.raises(InvalidInput, match="token id"):
            rig.core.run_micro_step(request, rig.core.generation)
        assert all(torch.equal(before[name], tensor) for name, tensor in gradient_of(rig.core).items())
        assert rig.core.status().accumulated == 1

    def test_a_backward_pass_that_breaks_off_voids_the_whole_sum(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig.open(rig.core)
        rig.run(rig.core, [sampled("p", 1.0, 4, 9)])

        def out_of_memory(self: torch.Tensor) -> None:
            raise MemoryError("backward")

        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "backward", out_of_memory)
            with pytest.raises(MemoryError):
                rig.run(rig.core, [sampled("q", 1.0, 4, 9)], index=1)
        sealed = rig.seal(rig.core)
        assert (sealed.accumulated, sealed.manifest) == ((), None)
        assert not any(tensor.any() for tensor in gradient_of(rig.core).values())

    def test_a_payload_of_another_micro_step_is_refused(self, rig: Rig) -> None:
        rig.open(rig.core)
        step = put(rig.objects, pack([sampled("p", 1.0, 4, 9)], index=4))
        request = m.RunMicroStep(micro_step=step.model_copy(update={"index": 5}), attempt=1, **CLIP, **BOOT)
        with pytest.raises(InvalidInput, match="micro-step 4 of b"):
            rig.core.run_micro_step(request, rig.core.generation)
        damaged = step.model_copy(update={"payload": step.payload.model_copy(update={"sha256": "0" * 64})})
        with pytest.raises(ChecksumMismatch):
            rig.core.run_micro_step(request.model_copy(update={"micro_step": damaged}), rig.core.generation)


class TestUpdates:
    def test_an_update_is_durable_and_answered_again(self, rig: Rig) -> None:
        before = checksum_of(rig)
        request = rig.batch()
        reply = rig.core.combine(request)
        assert (reply.version, reply.stepped) == (1, True)
        assert reply.checksum == checksum_of(rig) != before
        assert rig.core.combine(request) == reply
        assert rig.core.status().optimizer_steps == 1
        assert reply.checkpoint is not None
        assert folder_checksum(rig.folder / "checkpoints" / reply.checkpoint.name) == reply.checksum

    def test_another_combine_of_an_applied_batch_is_fenced(self, rig: Rig) -> None:
        request = rig.batch()
        rig.core.combine(request)
        with pytest.raises(Fenced, match="applied already"):
            rig.core.combine(request.model_copy(update={"own": ()}))
        with pytest.raises((Fenced, VersionMismatch)):
            rig.open(rig.core)

    def test_after_the_commit_the_next_batch_starts_from_zero(self, rig: Rig) -> None:
        rig.core.combine(rig.batch())
        for _ in range(2):
            rig.core.commit(m.Commit(batch="b", version=1, **BOOT))
        second = rig.core.combine(rig.batch(batch="c", seed=3))
        assert second.version == 2
        assert rig.core.status().optimizer_steps == 2
        with pytest.raises(Fenced, match="version 7 was not applied"):
            rig.core.commit(m.Commit(batch="c", version=7, **BOOT))

    @pytest.mark.parametrize("how", ["discard", "take_back"])
    def test_an_update_that_nobody_recorded_can_be_undone(self, rig: Rig, how: str) -> None:
        rig.core.combine(rig.batch())
        rig.core.commit(m.Commit(batch="b", **BOOT))
        before, moments = checksum_of(rig), moments_of(rig)
        request = rig.batch(batch="c", seed=3)
        gradient = gradient_of(rig.core)
        first = rig.core.combine(request)
        reply = getattr(rig.core, how)(m.BatchRequest(batch="c", **BOOT))
        assert checksum_of(rig) == before
        assert all(torch.equal(moments[name], tensor) for name, tensor in moments_of(rig).items())
        assert rig.core.status().version == 1
        if how == "discard":
            assert reply.phase is m.BatchPhase.CLOSED
            request = rig.batch(batch="c", seed=3)
        else:
            assert reply.phase is m.BatchPhase.SEALED
            assert all(torch.equal(gradient[name], tensor) for name, tensor in gradient_of(rig.core).items())
        again = rig.core.combine(request)
        assert (again.version, again.checksum) == (first.version, first.checksum)
        assert again.checkpoint != first.checkpoint

    def test_a_full_disk_does_not_step_twice(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        request = rig.batch()

        def full(*_: object) -> None:
            raise OSError(28, "no space left")

        with monkeypatch.context() as patch:
            patch.setattr(CheckpointStore, "write", full)
            with pytest.raises(OSError, match="no space"):
                rig.core.combine(request)
        assert rig.core.status().version is None
        with pytest.raises(VersionMismatch):
            rig.core.expose_snapshot(m.ExposeSnapshot(version=1, **BOOT))
        reply = rig.core.combine(request)
        assert (reply.version, rig.core.status().optimizer_steps) == (1, 1)
        assert reply.checksum == checksum_of(rig)

    @pytest.mark.parametrize("case", ["no micro-step", "only masked", "no valid execution"])
    def test_a_batch_without_target_makes_no_step(self, rig: Rig, case: str) -> None:
        rig.core.combine(rig.batch())
        rig.core.commit(m.Commit(batch="b", version=1, **BOOT))
        before, moments = checksum_of(rig), moments_of(rig)
        rig.open(rig.core, "c")
        if case == "only masked":
            rig.run(rig.core, [sampled("p", 1.0, 4, 0)], batch="c")
        if case == "no valid execution":
            rig.run(rig.core, [sampled("p", 1.0, 4, 5)], batch="c")
        valid = 0 if case == "no valid execution" else 2
        reply = rig.core.combine(rig.combine_request([rig.seal(rig.core, "c")], valid=valid, batch="c"))
        assert (reply.stepped, reply.version, reply.checkpoint) == (False, 1, None)
        assert checksum_of(rig) == reply.checksum == before
        assert all(torch.equal(moments[name], tensor) for name, tensor in moments_of(rig).items())
        assert rig.core.status().optimizer_steps == 1
        assert rig.core.commit(m.Commit(batch="c", version=1, **BOOT)).phase is m.BatchPhase.CLOSED

    def test_a_gradient_that_is_not_finite_makes_no_update(self, rig: Rig) -> None:
        request = rig.batch()
        rig.core._gradients.flat[3] = float("inf")  # pyright: ignore[reportOptionalMemberAccess]
        before = checksum_of(rig)
        with pytest.raises(Permanent, match="norm inf"):
            rig.core.combine(request)
        assert checksum_of(rig) == before
        assert rig.core.status().version == 0

    def test_weight_decay_moves_matrices_only(self, rig: Rig) -> None:
        before = {name: tensor.clone() for name, tensor in rig.core._model.hf_weights().items()}
        request = rig.batch()
        rig.core._gradients.zero()  # pyright: ignore[reportOptionalMemberAccess]
        rig.core._gradients.flat[0] = 1e-20  # pyright: ignore[reportOptionalMemberAccess]
        rig.core.combine(request.model_copy(update={"learning_rate": 0.5, "weight_decay": 0.2}))
        after = rig.core._model.hf_weights()
        assert torch.allclose(after["model.norm.weight"], before["model.norm.weight"])
        name = "model.layers.1.mlp.down_proj.weight"
        assert torch.allclose(after[name], before[name] * 0.9, atol=1e-6)


class TestRestart:
    def test_a_restarted_core_goes_on_exactly_as_if_it_had_not(self, rig: Rig) -> None:
        counters = {"sample": {"epoch": 2, "cursor": [7, 9]}, "waterlevel": 7}
        request = rig.batch().model_copy(update={"counters": counters})
        first = rig.core.combine(request)
        rig.core.commit(m.Commit(batch="b", version=1, **BOOT))
        straight = rig.core.combine(rig.batch(batch="c", seed=3))

        rig.core = rig.actor(0)
        restored = rig.core.restore_checkpoint(m.RestoreCheckpoint(version=1, checksum=first.checksum, **BOOT))
        assert (restored.version, restored.checksum) == (1, first.checksum)
        assert restored.counters == counters
        assert checksum_of(rig) == first.checksum
        assert rig.core.status().optimizer_steps == 1
        assert rig.core.commit(m.Commit(batch="b", version=1, **BOOT)).phase is m.BatchPhase.CLOSED
        rig.core.resume(m.Resume(**BOOT))
        again = rig.core.combine(rig.batch(batch="c", seed=3))
        assert again.checksum == straight.checksum

    def test_the_newest_complete_checkpoint_is_taken_when_none_is_named(self, rig: Rig) -> None:
        reply = rig.core.combine(rig.batch())
        rig.core = rig.actor(0)
        assert rig.core.restore_checkpoint(m.RestoreCheckpoint(**BOOT)).checksum == reply.checksum

    def test_versions_never_go_back_in_one_process(self, rig: Rig) -> None:
        rig.core.combine(rig.batch())
        rig.core.commit(m.Commit(batch="b", version=1, **BOOT))
        rig.core.combine(rig.batch(batch="c"))
        rig.core.commit(m.Commit(batch="c", version=2, **BOOT))
        with pytest.raises(Fenced, match="never goes back"):
            rig.core.restore_checkpoint(m.RestoreCheckpoint(version=1, **BOOT))
        with pytest.raises(Fenced, match="never goes back"):
            rig.core.restore_base(m.RestoreBase(**BOOT))

    def test_another_checksum_is_refused(self, rig: Rig) -> None:
        with pytest.raises(VersionMismatch):
            rig.actor(0).restore_base(m.RestoreBase(checksum="0" * 64, **BOOT))


class TestWeights:
    def test_a_snapshot_arrives_and_training_goes_on(self, rig: Rig) -> None:
        rig.open(rig.core)
        satellite = rig.satellite()
        assert satellite.status().checksum == rig.start.checksum
        assert weights_checksum(satellite._model.hf_weights()) == rig.start.checksum
        assert rig.core.status().resources.pins == 0
        rig.run(rig.core, [sampled("p", 1.0, 4, 9)])

    def test_weights_that_do_not_verify_are_not_used(self, rig: Rig) -> None:
        satellite = rig.actor(1)
        snapshot = rig.core.expose_snapshot(m.ExposeSnapshot(version=0, **BOOT))
        with pytest.raises(ChecksumMismatch):
            satellite.pull_snapshot(m.PullSnapshot(version=0, checksum="0" * 64, manifest=snapshot.manifest, **BOOT))
        assert satellite.status().version is None

    def test_weights_do_not_change_under_a_held_batch(self, rig: Rig) -> None:
        satellite = rig.satellite()
        rig.open(satellite)
        rig.core.combine(rig.batch())
        rig.core.commit(m.Commit(batch="b", version=1, **BOOT))
        with pytest.raises(StillHeld, match="commit or discard"):
            rig.hand_weights(satellite)
        satellite.commit(m.Commit(batch="b", version=1, **BOOT))
        rig.hand_weights(satellite)
        assert satellite.status().version == 1

    def test_a_batch_of_other_weights_is_not_opened(self, rig: Rig) -> None:
        with pytest.raises(VersionMismatch):
            rig.core.open_batch(m.OpenBatch(batch="b", version=1, checksum=rig.start.checksum, **BOOT))
        with pytest.raises(VersionMismatch):
            rig.core.open_batch(m.OpenBatch(batch="b", version=0, checksum="0" * 64, **BOOT))

    def test_export_is_a_loadable_folder_with_the_same_checksum(self, rig: Rig, tmp_path: Path) -> None:
        folder = tmp_path / "published"
        request = m.ExportWeights(folder=str(folder), version=0, checksum=rig.start.checksum, **BOOT)
        for _ in range(2):
            reply = rig.core.export(request)
        assert folder_checksum(folder) == rig.start.checksum
        assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"
        assert reply.bytes == sum(path.stat().st_size for path in folder.iterdir())
        with pytest.raises(VersionMismatch):
            rig.core.export(request.model_copy(update={"version": 1}))
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".published")] == []

    def test_replayed_log_probs_agree_with_the_models_own(self, rig: Rig) -> None:
        step = pack([sampled("p", 1.0, 4, 30), sampled("q", -1.0, 6, 20)], temperature=0.7)
        from workers.cell.training.stream import target_logprobs

        with torch.no_grad():
            step.behaviour_logprobs[step.targets] = target_logprobs(rig.core._model, step).logprobs.numpy()
        reply = rig.core.replay_logprobs(m.ReplayLogprobs(payload=put(rig.objects, step).payload, **BOOT))
        assert (reply.tokens, reply.version) == (50, 0)
        assert reply.max_gap < 1e-5
        step.behaviour_logprobs[step.targets.nonzero()[0][7]] -= 0.5
        off = rig.core.replay_logprobs(m.ReplayLogprobs(payload=put(rig.objects, step).payload, **BOOT))
        assert off.mean_gap == pytest.approx(0.01, rel=1e-3)
        assert off.max_gap == pytest.approx(0.5, rel=1e-3)
        assert 0.5 <= off.p999_gap < 0.57

    def test_only_tokens_of_the_held_version_are_replayed(self, rig: Rig) -> None:
        step = pack([sampled("p", 1.0, 4, 30)], version=3)
        reply = rig.core.replay_logprobs(m.ReplayLogprobs(payload=put(rig.objects, step).payload, **BOOT))
        assert (reply.tokens, reply.mean_gap, reply.p999_gap) == (0, 0.0, 0.0)


class TestResources:
    def test_release_frees_gradients_and_is_refused_while_a_batch_is_held(self, rig: Rig) -> None:
        rig.open(rig.core)
        with pytest.raises(StillHeld, match="b is open"):
            rig.core.release(m.Release(**BOOT))
        rig.core.discard(m.BatchRequest(batch="b", **BOOT))
        rig.core.expose_snapshot(m.ExposeSnapshot(version=0, **BOOT))
        with pytest.raises(StillHeld, match="1 readers"):
            rig.core.release(m.Release(**BOOT))

    def test_release_and_resume_again(self, rig: Rig) -> None:
        size = rig.core.resume(m.Resume(**BOOT)).gradient_bytes
        assert size == 4 * rig.core._arch.parameters
        for _ in range(2):
            freed = rig.core.release(m.Release(**BOOT))
        assert (freed.gradient_bytes, freed.snapshot_bytes, freed.pins) == (0, 0, 0)
        with pytest.raises(StillHeld, match="resume first"):
            rig.open(rig.core)
        assert rig.core.resume(m.Resume(**BOOT)).gradient_bytes == size
        assert rig.core.combine(rig.batch()).version == 1


class TestFencing:
    def test_another_boot_and_an_older_lease_are_fenced(self, rig: Rig) -> None:
        with pytest.raises(Fenced, match="boot epoch 2"):
            rig.core.fence(m.Resume(boot_epoch=2))
        rig.core.fence(m.Resume(lease_epoch=5, **BOOT))
        with pytest.raises(Fenced, match="lease 4"):
            rig.core.fence(m.Resume(lease_epoch=4, **BOOT))
        rig.core.fence(m.Resume(lease_epoch=5, **BOOT))

    def test_a_batch_whose_caller_is_gone_is_superseded(self, rig: Rig) -> None:
        rig.open(rig.core)
        rig.run(rig.core, [sampled("p", 1.0, 4, 9)])
        rig.open(rig.core, "c")
        assert not any(tensor.any() for tensor in gradient_of(rig.core).values())
        with pytest.raises(Fenced, match="has ended"):
            rig.open(rig.core)
        with pytest.raises(Fenced):
            rig.seal(rig.core)

    def test_a_satellite_never_combines(self, rig: Rig) -> None:
        satellite = rig.satellite()
        rig.open(satellite)
        sealed = rig.seal(satellite)
        with pytest.raises(InvalidInput, match="only the core"):
            satellite.combine(rig.combine_request([sealed], valid=1))

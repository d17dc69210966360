"""A checkpoint is one set: what it binds, what damage to any part of it does, and the state that comes back."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from infra.checkpoints import Checkpoint, CheckpointStore
from infra.checkpoints.contents import OPTIMIZER_FILE, RANDOM_FILE, contents_damage, write_contents
from infra.checkpoints.export import export_model
from infra.checkpoints.manifest import MANIFEST, SEAL
from infra.weights.folder import WEIGHTS_FILE, folder_checksum, load_weights
from tests.workers.cell.training.conftest import loaded
from tests.workers.cell.training.material import pack, sampled
from tests.workers.cell.training.rig import BOOT, Rig, twelve_executions
from workers.cell.training import random_state
from workers.cell.training.checkpointing import load_checkpoint
from workers.cell.training.optimizer import CoreOptimizer
from workflows.messages import training as m
from workflows.messages.batch_ledger import BatchLedger, LedgerEntry
from workflows.messages.errors import CheckpointUnusable, InvalidInput

PARTS = (WEIGHTS_FILE, OPTIMIZER_FILE, RANDOM_FILE, "config.json", MANIFEST, SEAL)


@pytest.fixture
def rig(tmp_path: Path, policy: Path) -> Rig:
    return Rig(tmp_path, policy)


def train(rig: Rig, *batches: str) -> list[Checkpoint]:
    """One committed update per batch; the checkpoints that are kept."""
    for number, batch in enumerate(batches):
        reply = rig.core.combine(rig.batch(batch=batch, seed=number))
        rig.core.commit(m.Commit(batch=batch, version=reply.version, **BOOT))
    return list(CheckpointStore(rig.folder / "checkpoints").list())


def restored(rig: Rig) -> m.RestoreReply:
    """What a core that starts anew goes on from."""
    rig.core = rig.actor(0)
    return rig.core.restore_checkpoint(m.RestoreCheckpoint(**BOOT))


class TestTheSet:
    def test_it_binds_the_books_of_the_batch_that_made_it(self, rig: Rig) -> None:
        satellite = rig.satellite()
        for actor in (rig.core, satellite):
            rig.open(actor)
        rig.run(rig.core, twelve_executions()[:2], index=2, attempt=3)
        rig.run(satellite, twelve_executions()[2:4], index=0)
        rig.run(satellite, twelve_executions()[4:6], index=1, attempt=2)
        sealed = [rig.seal(rig.core), rig.seal(satellite)]
        reply = rig.core.combine(
            rig.combine_request(sealed, valid=6, groups=("a/1", "a/0"), counters={"position/t": 3})
        )
        found = restored(rig)
        assert found.counters == {"position/t": 3}
        assert found.ledger == BatchLedger(
            batch="b",
            version_before=0,
            groups=("a/1", "a/0"),
            micro_steps=(
                LedgerEntry(micro_step=0, attempt=1, cell=1, boot_epoch=1),
                LedgerEntry(micro_step=1, attempt=2, cell=1, boot_epoch=1),
                LedgerEntry(micro_step=2, attempt=3, cell=0, boot_epoch=1),
            ),
            valid_executions=6,
            gradient_norm=reply.grad_norm or 0.0,
            gradient_checksum=reply.gradient_checksum,
        )

    def test_a_flipped_byte_in_any_part_is_named_and_the_set_before_is_taken(self, rig: Rig) -> None:
        before, newest = train(rig, "b", "c")
        draw = random.Random(5)
        for part in PARTS:
            path = newest.folder / part
            right = path.read_bytes()
            place = draw.randrange(64, len(right)) if part == SEAL else draw.randrange(len(right))
            path.write_bytes(right[:place] + bytes([right[place] ^ 1 << draw.randrange(8)]) + right[place + 1 :])
            with pytest.raises(CheckpointUnusable, match=part):
                newest.verify()
            assert restored(rig).checkpoint == before.ref
            path.write_bytes(right)
        assert restored(rig).checkpoint == newest.ref

    def test_a_set_that_is_not_whole_is_not_used(self, rig: Rig) -> None:
        before, newest = train(rig, "b", "c")
        for part in PARTS:
            path = newest.folder / part
            right = path.read_bytes()
            for torn in (right[:-7], b"", None):
                path.unlink() if torn is None else path.write_bytes(torn)
                with pytest.raises(CheckpointUnusable, match=part):
                    newest.verify()
                assert CheckpointStore(newest.folder.parent).last_complete() == before
            assert restored(rig).checkpoint == before.ref
            path.write_bytes(right)

    def test_what_a_writer_did_wrong_is_found_although_the_bytes_are_right(self, rig: Rig) -> None:
        (whole,) = train(rig, "b")
        assert (whole.damage(), contents_damage(whole)) == ((), ())
        weights, moments = load_weights(whole.folder), load_file(whole.folder / OPTIMIZER_FILE)
        generators = random_state.capture()
        store = CheckpointStore(rig.folder / "others")

        def faults(write: Callable[[Path], None]) -> list[str]:
            found = store.write(whole.meta, write)
            assert found.damage() == ()
            return [damage.file for damage in contents_damage(found)]

        other = {name: tensor + 1 for name, tensor in weights.items()}
        fewer = {name: tensor for name, tensor in moments.items() if "layers.1" not in name}
        assert faults(lambda to: write_contents(to, other, moments, generators, rig.policy)) == [WEIGHTS_FILE]
        assert faults(lambda to: write_contents(to, weights, fewer, generators, rig.policy)) == [OPTIMIZER_FILE]
        assert faults(lambda to: write_contents(to, weights, {}, generators, rig.policy)) == [OPTIMIZER_FILE]
        no_model = faults(lambda to: save_file(generators, to / RANDOM_FILE))
        assert no_model == [WEIGHTS_FILE]

    def test_a_generator_that_is_missing_is_named(self) -> None:
        state = random_state.capture()
        del state["numpy"]
        with pytest.raises(CheckpointUnusable, match="numpy"):
            random_state.restore(state)

    def test_every_generator_goes_on_where_it_was(self) -> None:
        def drawn() -> tuple[float, ...]:
            return random.random(), random.gauss(), np.random.random(), np.random.normal(), torch.rand(1).item()

        random.gauss()
        np.random.normal()
        state = random_state.capture()
        once = drawn()
        drawn()
        random_state.restore(state)
        assert drawn() == once


class TestAfterAFullDisk:
    def test_the_batch_can_be_opened_again_and_is_stepped_once(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        """An update that could not be made durable is taken back: the batch goes on with the weights it began with."""
        request = rig.batch()

        def full(*_: object) -> None:
            raise OSError(28, "no space left")

        with monkeypatch.context() as patch:
            patch.setattr(CheckpointStore, "write", full)
            with pytest.raises(OSError, match="no space"):
                rig.core.combine(request)
        rig.core.take_back(m.BatchRequest(batch="b", **BOOT))
        status = rig.core.status()
        assert (status.version, status.checksum, status.optimizer_steps) == (0, rig.start.checksum, 0)
        rig.open(rig.core)
        rig.run(rig.core, [sampled("r", 1.0, 4, 9)], index=1)
        reply = rig.core.combine(rig.combine_request([rig.seal(rig.core)], valid=3))
        assert (reply.version, rig.core.status().optimizer_steps) == (1, 1)
        assert [entry.micro_step for entry in restored(rig).ledger.micro_steps] == [0, 1]  # pyright: ignore


class TestExport:
    @pytest.mark.slow
    def test_transformers_loads_it_and_gives_the_same_log_probs(self, rig: Rig, tmp_path: Path) -> None:
        from transformers import AutoModelForCausalLM

        from workers.cell.training.stream import target_logprobs

        train(rig, "b")
        newest = train(rig, "c")[-1]
        export_model(newest, "run", tmp_path / "exported")
        step = pack([sampled("p", 1.0, 6, 40)])
        ours = loaded(rig.policy)
        assert load_checkpoint(newest, ours, None) == newest.meta.checksum
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
        ids = torch.from_numpy(step.ids).long()
        with torch.no_grad():
            logits = theirs(input_ids=ids[None]).logits[0, 5:-1]
            wanted = torch.log_softmax(logits, dim=-1).gather(1, ids[6:, None]).squeeze(1)
            found = target_logprobs(ours, step).logprobs
        assert logits.dtype == torch.float32
        assert found.shape == wanted.shape == (40,)
        assert (found - wanted).abs().max() < 1e-5

    def test_the_folder_says_where_it_came_from_and_in_which_type(self, rig: Rig, tmp_path: Path) -> None:
        newest = train(rig, "b")[-1]
        origin = export_model(newest, "run", tmp_path / "deep" / "exported", "bfloat16")
        assert (origin.version, origin.batch, origin.checkpoint) == (1, "b", newest.folder.name)
        files = sorted(path.name for path in (tmp_path / "deep" / "exported").iterdir())
        assert files == ["config.json", "gyre_checkpoint.json", "model.safetensors"]
        weights = load_file(tmp_path / "deep" / "exported" / "model.safetensors")
        assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
        assert '"dtype": "bfloat16"' in (tmp_path / "deep" / "exported" / "config.json").read_text()
        export_model(newest, "run", tmp_path / "exact")
        assert folder_checksum(tmp_path / "exact") == newest.meta.checksum

    def test_a_damaged_set_is_not_exported_and_nothing_is_left_behind(self, rig: Rig, tmp_path: Path) -> None:
        newest = train(rig, "b")[-1]
        with pytest.raises(InvalidInput, match=r"FOLDER: .* exists already"):
            export_model(newest, "run", rig.policy)
        (tmp_path / "file").write_text("")
        with pytest.raises(InvalidInput, match=r"FOLDER: .* cannot be written"):
            export_model(newest, "run", tmp_path / "file" / "below")
        (newest.folder / WEIGHTS_FILE).write_bytes(b"")
        with pytest.raises(CheckpointUnusable, match=WEIGHTS_FILE):
            export_model(newest, "run", tmp_path / "exported")
        assert not any("exported" in path.name for path in tmp_path.iterdir())


def state_of(folder: Path, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Weights and moments, by name, as they come out of a fresh model and optimizer."""
    model = loaded(folder)
    optimizer = CoreOptimizer(model)
    load_checkpoint(checkpoint, model, optimizer)
    return model.hf_weights() | optimizer.state()

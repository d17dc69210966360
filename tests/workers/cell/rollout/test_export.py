"""An exported checkpoint in the real engine: it loads, holds exactly these weights and answers as transformers does."""

from pathlib import Path

import pytest
import torch

from infra.checkpoints import CheckpointMeta, CheckpointStore
from infra.checkpoints.contents import write_contents
from infra.checkpoints.export import export_model
from infra.engine.fingerprint import engine_checksums, verify_weights
from infra.weights.checksum import weights_checksum
from infra.weights.folder import load_weights
from workflows.messages.batch_ledger import BatchLedger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def exported(model: Path, folder: Path) -> Path:
    """The weights of `model` as version 1 of a run, and that checkpoint as a folder."""
    weights = load_weights(model)
    ledger = BatchLedger(
        batch="b", version_before=0, micro_steps=(), valid_executions=1, gradient_norm=1.0, gradient_checksum="g"
    )
    meta = CheckpointMeta(
        version=1, checksum=weights_checksum(weights), optimizer_steps=0, code_version="test", ledger=ledger
    )
    random = {"torch": torch.get_rng_state()}
    store = CheckpointStore(folder / "checkpoints")
    checkpoint = store.write(meta, lambda to: write_contents(to, weights, {}, random, model))
    export_model(checkpoint, "run", folder / "exported")
    return folder / "exported"


async def test_sglang_serves_an_exported_checkpoint(engines, models, prompt, tmp_path):
    from transformers import AutoModelForCausalLM

    engine, _ = engines
    folder = exported(models["b"], tmp_path)
    await engine.client.update_weights_from_disk(str(folder), "1")
    try:
        verify_weights(
            await engine.client.weights_checksum(), engine_checksums(load_weights(folder), tied_embeddings=True)
        )
        answer = await engine.generate(prompt, 30, key="run|1|weights-b")
        assert answer.end.weight_version == "1"
    finally:
        await engine.client.update_weights_from_disk(str(models["a"]), "0")
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer.ids])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == answer.ids
    plain = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(answer.ids).unsqueeze(1)).squeeze(1)
    assert (plain - torch.tensor(answer.logprobs)).abs().max() < 1e-4

from pathlib import Path

import pytest
import torch

from infra.weights.architecture import Architecture
from infra.weights.checksum import weights_checksum
from infra.weights.folder import load_weights
from tests.workers.cell.training import oracle
from tests.workers.cell.training.conftest import loaded
from tests.workers.cell.training.material import VOCAB
from workers.cell.training.attention import AttentionPlan
from workers.cell.training.model import PolicyModel
from workflows.messages.errors import InvalidInput

SPANS = ((0, 7), (7, 8), (8, 30))


def packed_ids() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, VOCAB, (30,), generator=torch.Generator().manual_seed(3))
    return ids, torch.cat([torch.arange(end - start) for start, end in SPANS])


@pytest.fixture(params=["tied", "untied"])
def folder(request: pytest.FixtureRequest, policy: Path, untied_policy: Path) -> Path:
    return policy if request.param == "tied" else untied_policy


def test_weights_come_out_as_they_went_in(folder: Path) -> None:
    model, weights = loaded(folder), load_weights(folder)
    out = model.hf_weights()
    assert list(out) == sorted(weights)
    assert all(torch.equal(out[name], weights[name]) for name in weights)
    assert weights_checksum(out) == weights_checksum(weights)
    assert model.arch.parameters == sum(tensor.numel() for tensor in weights.values())
    assert sum(p.numel() for p in model.parameters()) == model.arch.parameters


def test_packed_logits_are_those_of_a_plain_model_per_path(folder: Path) -> None:
    model, weights, arch = loaded(folder), load_weights(folder), Architecture.from_folder(folder)
    ids, positions = packed_ids()
    logits = model.logits(ids, positions, AttentionPlan(SPANS))
    wanted = torch.cat([oracle.logits(arch, weights, ids[start:end]) for start, end in SPANS])
    assert torch.allclose(logits, wanted, atol=2e-5)


def test_a_mask_says_the_same_as_spans(model: PolicyModel) -> None:
    ids, positions = packed_ids()
    mask = torch.block_diag(*[torch.ones(end - start, end - start).tril() for start, end in SPANS]).bool()
    by_mask = model.logits(ids, positions, AttentionPlan(mask=mask))
    assert torch.allclose(by_mask, model.logits(ids, positions, AttentionPlan(SPANS)), atol=2e-5)


def test_only_the_rows_asked_for(model: PolicyModel) -> None:
    ids, positions = packed_ids()
    everything = model.logits(ids, positions, AttentionPlan(SPANS))
    rows = torch.tensor([2, 5, 29])
    assert torch.allclose(model.logits(ids, positions, AttentionPlan(SPANS), rows), everything[rows], atol=1e-6)
    assert model.logits(ids, positions, AttentionPlan(SPANS)).shape == everything.shape


def test_a_wrong_tensor_is_named(model: PolicyModel) -> None:
    weights = model.hf_weights()
    with pytest.raises(InvalidInput, match=r"model\.norm\.weight"):
        model.load_hf({name: tensor for name, tensor in weights.items() if name != "model.norm.weight"})
    with pytest.raises(InvalidInput, match=r"lm_head\.weight"):
        model.load_hf(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})


@pytest.mark.slow
def test_logits_are_those_of_transformers(folder: Path) -> None:
    from transformers import Qwen3ForCausalLM

    theirs = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids, positions = packed_ids()
    ours = loaded(folder).logits(ids, positions, AttentionPlan(SPANS))
    with torch.no_grad():
        wanted = torch.cat([theirs(input_ids=ids[None, start:end]).logits[0] for start, end in SPANS])
    assert torch.allclose(ours, wanted, atol=2e-5)

"""The KL term's gradient through the real model, and the reference model's life in an actor."""

from pathlib import Path

import pytest
import torch

from infra.weights.folder import folder_checksum
from tests.workers.cell.training import oracle
from tests.workers.cell.training.conftest import loaded
from tests.workers.cell.training.material import pack, sampled, write_policy
from tests.workers.cell.training.rig import BOOT, Rig, arch_and_weights, gradient_of
from workers.cell.training.reference import ReferencePolicies
from workflows.messages import training as m
from workflows.messages.errors import ChecksumMismatch, InvalidInput
from workflows.messages.loss import LossSettings

EXECUTIONS = [sampled("p", 1.0, 4, 9), sampled("q", 0.0, 5, 3)]
BETA = 0.5


@pytest.fixture
def rig(tmp_path: Path, policy: Path) -> Rig:
    return Rig(tmp_path, policy)


def kl_gradient(policy: Path, reference: Path) -> dict[str, torch.Tensor]:
    """Of sum over executions of mean over targets of k3, by the plain oracle: what beta multiplies."""
    arch, weights = arch_and_weights(policy)
    other, fixed = arch_and_weights(reference)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    total = torch.zeros(())
    for execution in EXECUTIONS:
        ids = torch.tensor(execution.ids)
        rows = range(execution.prompt - 1, len(ids) - 1)
        mine = torch.log_softmax(oracle.logits(arch, leaves, ids), -1)[rows, ids[execution.prompt :]]
        with torch.no_grad():
            theirs = torch.log_softmax(oracle.logits(other, fixed, ids), -1)[rows, ids[execution.prompt :]]
        ratio = theirs.exp() / mine.exp()
        total = total + (ratio - ratio.log() - 1).mean()
    total.backward()
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def test_the_gradient_pulls_towards_the_reference(tmp_path: Path, policy: Path, untied_policy: Path) -> None:
    found = []
    for kl_weight in (0.0, BETA):
        rig = Rig(tmp_path / str(kl_weight), policy)
        rig.open(rig.core)
        settings = LossSettings(kl_weight=kl_weight, reference=str(untied_policy))
        reply = rig.run(rig.core, EXECUTIONS, loss=settings)
        metrics = reply.metrics
        assert (reply.version, reply.checksum) == (0, rig.start.checksum)
        found.append(gradient_of(rig.core))
        assert metrics.reference_tokens == metrics.tokens == 12
        assert metrics.reference_kl_sum > 0
    for name, wanted in kl_gradient(policy, untied_policy).items():
        assert torch.allclose(found[1][name] - found[0][name], BETA * wanted, rtol=1e-3, atol=2e-5), name


def test_it_goes_with_the_training_resources(rig: Rig) -> None:
    held = rig.core._references
    rig.open(rig.core)
    rig.run(rig.core, EXECUTIONS, loss=LossSettings(kl_weight=BETA, reference="base"))
    assert held.bytes == 4 * rig.core._arch.parameters
    rig.core.discard(m.BatchRequest(batch="b", **BOOT))
    assert held.bytes > 0
    rig.core.release(m.Release(**BOOT))
    assert held.bytes == 0


def test_the_promised_weights_or_none(rig: Rig, policy: Path, untied_policy: Path) -> None:
    rig.open(rig.core)
    promised = {"kl_weight": BETA, "reference": str(untied_policy), "reference_checksum": folder_checksum(policy)}
    with pytest.raises(ChecksumMismatch, match="was promised"):
        rig.run(rig.core, EXECUTIONS, loss=LossSettings(**promised))
    assert rig.core.status().accumulated == 0
    right = {**promised, "reference_checksum": folder_checksum(untied_policy)}
    assert not rig.run(rig.core, EXECUTIONS, loss=LossSettings(**right)).repeated


def test_a_folder_that_is_no_reference(tmp_path: Path, policy: Path) -> None:
    step, references = pack(EXECUTIONS), ReferencePolicies(policy)
    with pytest.raises(InvalidInput, match=r"config\.json"):
        references(step, LossSettings(reference=str(tmp_path)))
    other = write_policy(tmp_path / "other")
    config = other / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 97', '"vocab_size": 96'))
    with pytest.raises(InvalidInput, match="96 tokens, not 97"):
        references(step, LossSettings(reference=str(other)))
    assert references.bytes == 0


def test_log_probs_are_those_of_the_model_in_the_folder(policy: Path, untied_policy: Path) -> None:
    from workers.cell.training.stream import target_logprobs

    step = pack(EXECUTIONS, temperature=0.7)
    found = ReferencePolicies(policy)(step, LossSettings(reference=str(untied_policy)))
    assert found is not None
    assert not found.requires_grad
    assert torch.equal(found, target_logprobs(loaded(untied_policy), step).logprobs.detach())

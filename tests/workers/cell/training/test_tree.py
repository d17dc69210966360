"""A tree trained as a tree gives the gradient of its paths trained one by one."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from infra.micro_steps import PackedMicroStep
from tests.workers.cell.training.trees import Tokens, Tree, trees
from workers.cell.training.loss import LossSettings
from workers.cell.training.model import PolicyModel
from workers.cell.training.stream import SingleStageStream, target_logprobs
from workers.cell.training.tree_attention import (
    block_mask_of,
    blocks_of,
    flex_tree_attention,
    subtree_end_by_place,
    tree_attention,
    visible,
)

SETTINGS = LossSettings(clip_low=0.2, clip_high=0.28)
DEEP = Tree((-1, 0, 1, 2, 2, 0, 5), (5, 1, 3, 2, 4, 1, 6), (False, True, True, True, False, True, True))
UNCHECKED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
fewer = settings(deadline=None, max_examples=25, suppress_health_check=UNCHECKED)


def inputs(places: int, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v with grouped queries, as [b, heads, s, dim]."""
    generator = torch.Generator().manual_seed(places)
    shapes = [(1, heads, places, 12) for heads in (4, 2, 2)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def mask_of(tree: Tree) -> Tensor:
    places = torch.arange(sum(tree.sizes))
    return visible(places[:, None], places[None], subtree_end_by_place(tree.offsets, tree.parents))


@fewer
@given(trees())
def test_a_place_sees_its_ancestors_and_nothing_else(tree: Tree):
    segment = np.repeat(np.arange(len(tree.sizes)), tree.sizes)
    for row, seen in enumerate(mask_of(tree).tolist()):
        chain = tree.chain(segment[row])
        assert seen == [column <= row and segment[column] in chain for column in range(len(segment))]
    assert sum(block.pairs for block in blocks_of(tree.offsets, tree.parents)) == int(mask_of(tree).sum())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@fewer
@given(tree=trees())
def test_blocks_give_what_a_dense_mask_gives(tree: Tree, dtype: torch.dtype, tolerance: float):
    qkv = inputs(sum(tree.sizes), dtype)
    wanted = scaled_dot_product_attention(*qkv, attn_mask=mask_of(tree), enable_gqa=True)
    found = tree_attention(qkv[0], qkv[1], qkv[2], blocks_of(tree.offsets, tree.parents))
    assert torch.allclose(found, wanted, atol=tolerance)
    upstream = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    gradients = zip(torch.autograd.grad(found, qkv, upstream), torch.autograd.grad(wanted, qkv, upstream), strict=True)
    assert all((ours - theirs).norm() <= tolerance * theirs.norm() + 1e-7 for ours, theirs in gradients)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_mask_for_cuda_says_the_same():
    qkv = [tensor.detach() for tensor in inputs(sum(DEEP.sizes), torch.float32)]
    mask = block_mask_of(DEEP.offsets, DEEP.parents, torch.device("cpu"))
    found = flex_tree_attention(qkv[0], qkv[1], qkv[2], mask)
    assert torch.allclose(
        found, scaled_dot_product_attention(*qkv, attn_mask=mask_of(DEEP), enable_gqa=True), atol=1e-5
    )


def test_a_chain_of_only_children_is_one_block():
    chain = Tree((-1, 0, 1, 2), (3, 4, 1, 2), (True,) * 4)
    assert len(blocks_of(chain.offsets, chain.parents)) == 1


def gradient(model: PolicyModel, step: PackedMicroStep) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    metrics = SingleStageStream(model).run(step, SETTINGS)
    found = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}
    return metrics.loss_sum, {name: tensor.clone() for name, tensor in found.items()}


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, tensor in wanted.items():
        assert (found[name] - tensor).norm() <= 1e-5 * tensor.norm() + 1e-9, name


@fewer
@given(tree=trees())
def test_loss_and_every_gradient_are_those_of_flat_paths(model: PolicyModel, tree: Tree):
    tokens = Tokens(tree)
    step, paths = tokens.as_tree(), tokens.as_paths()
    assert step.target_tokens == paths.target_tokens
    assert step.tokens <= paths.tokens
    loss, found = gradient(model, step)
    wanted_loss, wanted = gradient(model, paths)
    assert loss == pytest.approx(wanted_loss, rel=1e-5, abs=1e-7)
    assert_same(found, wanted)


def test_changing_one_sibling_leaves_the_others_alone(model: PolicyModel):
    tree = Tree((-1, 0, 1, 0, 0), (6, 4, 3, 5, 4), (False, True, True, True, True))
    first, second = Tokens(tree), Tokens(tree)
    start, end = tree.offsets[3], tree.offsets[4]
    second.ids[start:end] = (second.ids[start:end] + 1) % 90
    for tokens in (first, second):
        tokens.targets[start:end] = False  # the sibling that changes is context of nobody
    assert not np.array_equal(first.ids, second.ids)
    assert torch.equal(
        target_logprobs(model, first.as_tree()).logprobs, target_logprobs(model, second.as_tree()).logprobs
    )
    assert_same(gradient(model, first.as_tree())[1], gradient(model, second.as_tree())[1])


def test_a_tree_is_computed_once_per_token(model: PolicyModel, monkeypatch: pytest.MonkeyPatch):
    lengths: list[int] = []
    original = PolicyModel.logits
    monkeypatch.setattr(
        PolicyModel,
        "logits",
        lambda self, ids, *rest, **kw: (lengths.append(len(ids)), original(self, ids, *rest, **kw))[1],
    )
    target_logprobs(model, Tokens(DEEP).as_tree())
    assert lengths == [sum(DEEP.sizes)]

"""Every term of the loss and every figure against numbers worked out token by token, in plain Python, from the papers.

The objective by cases as in OpenAI's Spinning Up on PPO-clip ("a simplified version"): with A > 0 the ratio counts up
to 1 + eps, with A < 0 down to 1 - eps, and a token beyond gets no gradient. k3 and its derivative by hand from
Schulman, "Approximating KL divergence". The derivative of a log-prob by the logits is (one-hot - softmax) /
temperature.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st

from infra.micro_steps import MicroStepHeader, PackedMicroStep, PackedPath, TargetSpan
from workers.cell.training.loss import micro_step_loss
from workflows.messages.errors import InvalidInput
from workflows.messages.loss import LossSettings

VOCABULARY = 5
CONTEXT = 2


@dataclass
class Token:
    """One target as plain numbers."""

    execution: int
    id: int
    logits: list[float]
    behaviour: float
    reference: float
    version: int


@dataclass
class Wanted:
    """What the oracle finds, in sums."""

    loss: float = 0.0
    gradients: list[list[float]] = field(default_factory=list)
    ratio: float = 0.0
    ratio_max: float = 0.0
    low: int = 0
    high: int = 0
    truncated: int = 0
    kl: float = 0.0
    reference_kl: float = 0.0
    entropy: float = 0.0
    versions: dict[int, int] = field(default_factory=dict)


def work_out(tokens: list[Token], advantages: list[float], temperature: float, settings: LossSettings) -> Wanted:
    wanted = Wanted()
    lengths = [sum(token.execution == k for token in tokens) for k in range(len(advantages))]
    for token in tokens:
        exponents = [math.exp(x / temperature) for x in token.logits]
        chances = [e / sum(exponents) for e in exponents]
        logp = math.log(chances[token.id])
        rho = math.exp(logp - token.behaviour)
        advantage, length = advantages[token.execution], lengths[token.execution]
        weight = float(np.float32(advantage / length))  # what is packed is fp32
        ceiling = math.inf if settings.truncate_ratio is None else settings.truncate_ratio
        if weight >= 0:
            best = min(ceiling, 1 + settings.clip_high)
            counted, moves = min(rho, best), rho <= best
        else:
            counted = max(min(rho, ceiling), 1 - settings.clip_low)
            moves = 1 - settings.clip_low <= rho <= ceiling
        loss, slope = -counted * weight, -rho * weight if moves else 0.0
        ahead = token.reference - logp
        estimate = math.exp(ahead) - 1 - ahead
        if settings.reference is not None:
            share = settings.kl_weight / length
            loss += share * estimate
            slope += share * (1 - math.exp(ahead))
            wanted.reference_kl += estimate
        wanted.loss += loss
        one_hot = [float(k == token.id) for k in range(VOCABULARY)]
        wanted.gradients.append([slope * (a - b) / temperature for a, b in zip(one_hot, chances, strict=True)])
        wanted.ratio += rho
        wanted.ratio_max = max(wanted.ratio_max, rho)
        wanted.low += weight < 0 and rho < 1 - settings.clip_low
        wanted.high += weight > 0 and rho > 1 + settings.clip_high
        wanted.truncated += rho > ceiling
        wanted.kl += rho - 1 - math.log(rho)
        wanted.entropy -= sum(chance * math.log(chance) for chance in chances)
        wanted.versions[token.version] = wanted.versions.get(token.version, 0) + 1
    return wanted


def packed(tokens: list[Token], advantages: list[float], temperature: float) -> PackedMicroStep:
    """Each execution as one path: CONTEXT tokens, then its targets."""
    ids, targets, weights, behaviour, versions, positions, edges, paths = [], [], [], [], [], [], [0], []
    for k, advantage in enumerate(advantages):
        mine = [token for token in tokens if token.execution == k]
        start = len(ids) + CONTEXT
        ids += [0] * CONTEXT + [token.id for token in mine]
        targets += [False] * CONTEXT + [True] * len(mine)
        weights += [0.0] * CONTEXT + [advantage / len(mine)] * len(mine)
        behaviour += [0.0] * CONTEXT + [token.behaviour for token in mine]
        versions += [-1] * CONTEXT + [token.version for token in mine]
        positions += range(CONTEXT + len(mine))
        edges.append(len(ids))
        span = TargetSpan(call=f"c{k}", offset=0, start=start, end=len(ids))
        paths.append(
            PackedPath(
                execution=f"e{k}", leaf=f"c{k}", segment=k, advantage=advantage, target_total=len(mine), spans=(span,)
            )
        )
    return PackedMicroStep(
        header=MicroStepHeader(batch="b", index=0, group="g", temperature=temperature, paths=tuple(paths)),
        ids=np.array(ids, np.int32),
        positions=np.array(positions, np.int32),
        segment_offsets=np.array(edges, np.int32),
        segment_parents=np.full(len(paths), -1, np.int32),
        targets=np.array(targets, bool),
        weights=np.array(weights, np.float32),
        behaviour_logprobs=np.array(behaviour, np.float32),
        versions=np.array(versions, np.int64),
    )


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, width=32)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Token], list[float], float]:
    advantages = draw(st.lists(st.one_of(st.just(0.0), numbers(-3, 3)), min_size=1, max_size=3))
    tokens = [
        Token(
            execution=execution,
            id=draw(st.integers(0, VOCABULARY - 1)),
            logits=draw(st.lists(numbers(-3, 3), min_size=VOCABULARY, max_size=VOCABULARY)),
            behaviour=draw(numbers(-6, -0.0625)),
            reference=draw(numbers(-6, -0.0625)),
            version=draw(st.integers(0, 4)),
        )
        for execution in range(len(advantages))
        for _ in range(draw(st.integers(1, 4)))
    ]
    return tokens, advantages, draw(st.sampled_from([1.0, 0.7, 1.3]))


@st.composite
def all_settings(draw: st.DrawFn) -> LossSettings:
    return LossSettings(
        clip_low=draw(numbers(0.0625, 0.5)),
        clip_high=draw(numbers(0.0625, 1.0)),
        truncate_ratio=draw(st.one_of(st.none(), numbers(1, 3))),
        kl_weight=draw(st.sampled_from([0.0, 0.01, 0.5])),
        log_entropy=draw(st.booleans()),
        reference="base",
    )


@given(batches(), all_settings(), st.booleans())
@with_settings(max_examples=150, deadline=None)
def test_loss_gradient_and_figures_are_those_worked_out_by_hand(batch, settings: LossSettings, asks: bool) -> None:
    tokens, advantages, temperature = batch
    if not asks:
        settings = settings.model_copy(update={"reference": None, "kl_weight": 0.0})
    wanted = work_out(tokens, advantages, temperature, settings)
    logits = torch.tensor([token.logits for token in tokens], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([token.reference for token in tokens], dtype=torch.float64) if asks else None
    found = micro_step_loss(logits, packed(tokens, advantages, temperature), settings, reference)
    found.total.backward()
    assert found.is_finite
    assert logits.grad is not None
    assert found.total.item() == pytest.approx(wanted.loss, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(logits.grad.numpy(), wanted.gradients, rtol=1e-5, atol=1e-6)
    metrics, count = found.metrics, len(tokens)
    assert metrics.tokens == count
    assert metrics.loss_sum == found.total.item()
    assert metrics.ratio_sum == pytest.approx(wanted.ratio, rel=1e-6)
    assert metrics.ratio_max == pytest.approx(wanted.ratio_max, rel=1e-6)
    assert (metrics.clipped_low, metrics.clipped_high, metrics.truncated) == (
        wanted.low,
        wanted.high,
        wanted.truncated,
    )
    assert metrics.kl_sum == pytest.approx(wanted.kl, rel=1e-5, abs=1e-6)
    assert (metrics.reference_tokens, metrics.entropy_tokens) == (
        count if asks else 0,
        count if settings.log_entropy else 0,
    )
    assert metrics.reference_kl_sum == pytest.approx(wanted.reference_kl, rel=1e-6, abs=1e-6)
    if settings.log_entropy:
        assert metrics.entropy_sum == pytest.approx(wanted.entropy, rel=1e-6)
    assert metrics.versions == wanted.versions
    assert (metrics.computed_tokens, metrics.path_tokens) == (count + CONTEXT * len(advantages),) * 2


def some(count: int = 3) -> tuple[list[Token], PackedMicroStep, torch.Tensor]:
    tokens = [Token(0, k % VOCABULARY, [0.1 * k, 0.2, -0.3, 0.4, 0.0], -1.5, -1.2, 2) for k in range(count)]
    return tokens, packed(tokens, [0.5], 1.0), torch.tensor([token.logits for token in tokens])


def test_the_policy_itself_as_reference_changes_nothing() -> None:
    tokens, step, logits = some()
    logp = torch.log_softmax(logits, -1)[range(3), [token.id for token in tokens]]
    gradients = []
    for settings, reference in ((LossSettings(), None), (LossSettings(kl_weight=0.7, reference="base"), logp)):
        leaf = logits.clone().requires_grad_()
        found = micro_step_loss(leaf, step, settings, reference)
        found.total.backward()
        gradients.append(leaf.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-7)
    assert found.metrics.reference_kl_sum == pytest.approx(0, abs=1e-6)


def test_a_reference_comes_with_its_name_and_never_without() -> None:
    _, step, logits = some()
    with pytest.raises(InvalidInput, match=r"loss\.reference"):
        micro_step_loss(logits, step, LossSettings(), torch.zeros(3))
    with pytest.raises(InvalidInput, match=r"loss\.reference"):
        micro_step_loss(logits, step, LossSettings(reference="base"))


def test_what_is_not_finite_is_said_and_not_measured() -> None:
    _, step, logits = some()
    found = micro_step_loss(logits * float("nan"), step, LossSettings())
    assert (found.is_finite, found.metrics.tokens) == (False, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_it_computes_in_fp32_at_least(dtype: torch.dtype) -> None:
    _, step, logits = some()
    assert micro_step_loss(logits.to(dtype), step, LossSettings()).total.dtype == torch.promote_types(
        dtype, torch.float32
    )

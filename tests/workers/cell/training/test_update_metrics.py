"""What an update measures does not depend on how its batch was cut, or on which cells computed it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st

from infra.update_metrics import figures
from tests.workers.cell.training.conftest import loaded
from tests.workers.cell.training.material import Sampled, pack
from tests.workers.cell.training.rig import Rig, twelve_executions
from workers.cell.training.reference import ReferencePolicies
from workers.cell.training.stream import SingleStageStream
from workflows.messages.loss import LossSettings
from workflows.messages.training import TokenMetrics

VERSIONS = {name.name: k % 3 for k, name in enumerate(twelve_executions())}


@pytest.fixture(scope="module")
def stream(policy: Path, untied_policy: Path) -> SingleStageStream:
    return SingleStageStream(loaded(policy), ReferencePolicies(policy))


@pytest.fixture(scope="module")
def settings(untied_policy: Path) -> LossSettings:
    return LossSettings(kl_weight=0.3, reference=str(untied_policy), truncate_ratio=1.1)


def measure(stream: SingleStageStream, settings: LossSettings, cut: list[list[Sampled]]) -> TokenMetrics:
    """Micro-step by micro-step; what was sampled by which version follows the execution."""
    total = TokenMetrics()
    for index, executions in enumerate(cut):
        step = pack(executions, index=index)
        places = iter(VERSIONS[one.name] for one in executions for _ in one.behaviour)
        step.versions[step.targets] = list(places)
        total = total.merged(stream.run(step, settings))
    return total


@pytest.fixture(scope="module")
def whole(stream: SingleStageStream, settings: LossSettings) -> TokenMetrics:
    return measure(stream, settings, [twelve_executions()])


@given(data=st.data())
@with_settings(max_examples=6, deadline=None)
def test_cut_any_way(
    data: st.DataObject, stream: SingleStageStream, settings: LossSettings, whole: TokenMetrics
) -> None:
    order = data.draw(st.permutations(twelve_executions()))
    edges = sorted(data.draw(st.sets(st.integers(1, 11), max_size=4)))
    cut = [list(order[start:end]) for start, end in zip([0, *edges], [*edges, 12], strict=True)]
    found = measure(stream, settings, cut)
    for name, wanted in whole.model_dump().items():
        if name == "gaps":  # a gap at the edge of a bin may fall on either side
            assert sum(found.gaps.values()) == whole.tokens
        else:
            value = getattr(found, name)
            assert value == (pytest.approx(wanted, rel=1e-4) if isinstance(wanted, float) else wanted), name


def test_the_figures_of_three_cells_are_those_of_one(tmp_path: Path, policy: Path) -> None:
    shown = []
    for name, shares in {"one": [range(12)], "three": [[0, 5, 11], [1, 2, 3, 4], [6, 7, 8, 9, 10]]}.items():
        rig = Rig(tmp_path / name, policy)
        total = TokenMetrics()
        for cell, indices in enumerate(shares):
            actor = rig.core if cell == 0 else rig.satellite(cell)
            rig.open(actor)
            for index in indices:
                rig.run(actor, [twelve_executions()[index]], index=index)
            total = total.merged(rig.seal(actor).metrics)
        shown.append(figures(total, version=0))
    for name, wanted in shown[0].items():
        assert shown[1][name] == (pytest.approx(wanted, rel=1e-9) if isinstance(wanted, float) else wanted), name

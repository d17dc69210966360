"""One batch, cut every way: the gradient, the update and the books are those of one machine (field case 35)."""

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.workers.cell.training import oracle
from tests.workers.cell.training.material import Sampled, pack, put, sampled
from tests.workers.cell.training.rig import BOOT, CLIP, Rig, arch_and_weights, gradient_of
from workers.cell.training.actor import TrainingActor
from workflows.messages import training as m
from workflows.messages.errors import TransferFailed

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 17, 20)
EXECUTIONS = [sampled(f"e{k}", (-1.0) ** k * (1 + k % 3), 3 + k, n, seed=5) for k, n in enumerate(LENGTHS)]
ONE, IN_TWO, TWICE, TWICE_IN_TWO = (1, 1), (2, 1), (1, 2), (2, 2)
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


@dataclass(frozen=True)
class Cut:
    """`parts`: the micro-step of each execution. `owners`: the cell of each micro-step, computed in this order.

    `shapes`: pipeline stages and replicas of each cell. Satellites join when they compute for the first time, those
    that never do before the window closes. The one that dies has computed its share; `dies_late`: it is found out only
    when its gradient cannot be had.
    """

    parts: tuple[int, ...]
    owners: tuple[int, ...]
    cells: int = 1
    shapes: tuple[tuple[int, int], ...] = ((1, 1),) * 3
    dies: int | None = None
    dies_late: bool = False

    def executions(self, index: int) -> list[Sampled]:
        return [execution for execution, part in zip(EXECUTIONS, self.parts, strict=True) if part == index]


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    count = draw(st.integers(1, 12))
    parts = [*range(count), *(draw(st.integers(0, count - 1)) for _ in range(12 - count))]
    cells = draw(st.integers(1, 3))
    owners = draw(st.lists(st.integers(0, cells - 1), min_size=count, max_size=count))
    shapes = draw(st.tuples(*[st.sampled_from((ONE, IN_TWO, TWICE, TWICE_IN_TWO))] * 3))
    dies = draw(st.none() | st.integers(1, cells - 1)) if cells > 1 else None
    return Cut(tuple(draw(st.permutations(parts))), tuple(owners), cells, shapes, dies, draw(st.booleans()))


@pytest.fixture(scope="module")
def wanted(policy: Path) -> dict[str, Tensor]:
    """The summed gradient (V = 1) by the plain oracle, in fp64."""
    arch, weights = arch_and_weights(policy)
    exact = {name: tensor.to(torch.float64) for name, tensor in weights.items()}
    return oracle.batch_gradient(arch, exact, EXECUTIONS, 1, 0.2, 0.28)[1]


class Batch:
    """A batch and the actors that work on it, cut as `cut` says."""

    def __init__(self, rig: Rig, cut: Cut) -> None:
        self.rig, self.cut = rig, cut
        self.actors: dict[int, TrainingActor] = {0: rig.core}
        self.attempts: dict[int, int] = {}
        self.accepted: dict[int, set[tuple[int, int]]] = {cell: set() for cell in range(cut.cells)}
        rig.open(rig.core)

    def member(self, cell: int) -> TrainingActor:
        if cell not in self.actors:
            self.actors[cell] = self.rig.satellite(cell)
            self.rig.open(self.actors[cell])
        return self.actors[cell]

    def compute(self, indices: dict[int, list[int]]) -> None:
        """Each cell its micro-steps, in flight as many at once as it takes."""
        for cell, mine in indices.items():
            actor, answers = self.member(cell), list[m.MicroStepReply | BaseException]()
            for index in mine:
                self.attempts[index] = attempt = self.attempts.get(index, 0) + 1
                step = put(self.rig.objects, pack(self.cut.executions(index), index=index))
                request = m.RunMicroStep(
                    micro_step=step, attempt=attempt, loss=CLIP["loss"], boot_epoch=1, lease_epoch=0
                )
                actor.feed(request, actor.generation, lambda: False, answers.append)
            while actor.in_flight:
                actor.advance()
            for answer in answers:
                assert isinstance(answer, m.MicroStepReply), answer
                self.accepted[cell].add((answer.index, answer.attempt))

    def lose(self, cell: int) -> None:
        """Its share goes back into the stream, for the others."""
        self.actors.pop(cell, None)
        lost = self.accepted.pop(cell)
        self.rig.open(self.rig.core)
        self.compute({0: sorted(index for index, _ in lost)})

    def seal(self) -> list[m.SealReply]:
        for cell in self.accepted:
            self.member(cell)
        return [self.rig.seal(self.actors[cell]) for cell in sorted(self.actors)]

    def balances(self, sealed: list[m.SealReply]) -> bool:
        """Every micro-step in one sum once, by the attempt that was accepted."""
        entries = [(entry.index, entry.attempt) for reply in sealed for entry in reply.accumulated]
        claimed = {reply.cell: {(entry.index, entry.attempt) for entry in reply.accumulated} for reply in sealed}
        return claimed == self.accepted and sorted(i for i, _ in entries) == sorted(set(self.cut.parts))

    def combine(self, sealed: list[m.SealReply], *, by_group: bool) -> m.CombineReply:
        request = self.rig.combine_request(sealed, valid=12, max_grad_norm=1e9)
        if not by_group:
            return self.rig.core.combine(request)
        members = tuple((reply.cell, reply.boot_epoch) for reply in sealed)
        group = m.CombineGroup(meeting=sealed[0].meeting, members=members, timeout_seconds=120)
        with ThreadPoolExecutor(2) as beside:
            handing_in = [
                beside.submit(actor.contribute, m.Contribute(batch="b", group=group, **BOOT))
                for cell, actor in self.actors.items()
                if cell != 0
            ]
            reply = self.rig.core.combine(request.model_copy(update={"group": group}))
            assert all(one.result().phase is m.BatchPhase.SEALED for one in handing_in)
        return reply


def assert_close(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], tolerance: float) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        error = (found[name].to(torch.float64) - tensor).norm() / tensor.norm()
        assert error <= tolerance, f"{name}: {error:.1e}"


def check(folder: Path, policy: Path, wanted: dict[str, Tensor], dtype: str, cut: Cut) -> None:
    """Gradient, books and update of the batch cut so, by reads and by groups."""
    rig = Rig(folder, policy, dtype=dtype, stages=cut.shapes, combine="groups")
    batch = Batch(rig, cut)
    for owner, together in itertools.groupby(enumerate(cut.owners), key=lambda pair: pair[1]):
        batch.compute({owner: [index for index, _ in together]})
    if cut.dies is not None and not cut.dies_late:
        batch.lose(cut.dies)
    sealed = batch.seal()
    if cut.dies is not None and cut.dies_late:
        lost = batch.actors[cut.dies]
        lost.discard(m.BatchRequest(batch="b", **BOOT))  # its memory says something else from now on
        if sealed[cut.dies].accumulated:
            with pytest.raises(TransferFailed):
                batch.combine(sealed, by_group=False)
        batch.lose(cut.dies)
        sealed = batch.seal()
    assert batch.balances(sealed)
    gradients = [gradient_of(actor) for actor in batch.actors.values()]
    total = {name: torch.stack([gradient[name] for gradient in gradients]).sum(0) for name in wanted}
    assert_close(total, wanted, TOLERANCE[dtype])

    by_reads = batch.combine(sealed, by_group=False)
    rig.core.take_back(m.BatchRequest(batch="b", **BOOT))
    by_group = batch.combine(sealed, by_group=len(sealed) > 1)
    assert (by_group.gradient_checksum, by_group.checksum) == (by_reads.gradient_checksum, by_reads.checksum)
    norm = torch.cat([tensor.flatten() for tensor in wanted.values()]).norm().item() / 12
    assert by_group.grad_norm == pytest.approx(norm, rel=TOLERANCE[dtype])
    assert by_group.micro_steps == len(set(cut.parts))


@pytest.mark.parametrize("dtype", TOLERANCE)
@settings(
    deadline=None, max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@example(cut=Cut((0,) * 12, (0,)))
@example(cut=Cut((0,) * 12, (0,), 2, (IN_TWO, ONE, ONE)))
@example(cut=Cut(tuple(range(12)), (0, 1, 2) * 4, 3, (IN_TWO, ONE, TWICE)))
@example(cut=Cut(tuple(range(12)), (1,) * 12, 2, (ONE, IN_TWO, ONE)))
@example(cut=Cut(tuple(range(12)), (0, 1) * 6, 2, (IN_TWO, TWICE_IN_TWO, ONE), dies=1, dies_late=True))
@given(cut=cuts())
def test_the_gradient_is_that_of_one_machine(
    tmp_path_factory: pytest.TempPathFactory, policy: Path, wanted: dict[str, Tensor], dtype: str, cut: Cut
) -> None:
    check(tmp_path_factory.mktemp("cut"), policy, wanted, dtype, cut)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dtype", TOLERANCE)
@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(cut=cuts())
def test_any_cut_at_all(
    tmp_path_factory: pytest.TempPathFactory, policy: Path, wanted: dict[str, Tensor], dtype: str, cut: Cut
) -> None:
    check(tmp_path_factory.mktemp("cut"), policy, wanted, dtype, cut)

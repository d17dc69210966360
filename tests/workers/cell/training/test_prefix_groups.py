"""Groups of cells that joined in order: the same bits as one-sided reads, and no harm when a group breaks."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from activities.training import TrainingActivities, prefix_group
from tests.workers.cell.training.rig import BOOT, Rig, twelve_executions
from workers.cell.training import prefix_groups
from workers.cell.training.actor import TrainingActor
from workflows.messages import training as m
from workflows.messages.batch import CombineUpdate, Sealed
from workflows.messages.errors import ActorUnavailable, InvalidInput, TransferFailed
from workflows.messages.scheduling import Weights


class Cells:
    """A core and a satellite with half a batch each, sealed."""

    def __init__(self, folder: Path, policy: Path) -> None:
        self.rig = Rig(folder, policy, combine="groups")
        self.core, self.satellite = self.rig.core, self.rig.satellite()
        self.seal()

    def seal(self) -> None:
        for cell, actor in enumerate((self.core, self.satellite)):
            self.rig.open(actor)
            for index in range(cell, 6, 2):
                self.rig.run(actor, [twelve_executions()[index]], index=index)
        self.sealed = [self.rig.seal(self.core), self.rig.seal(self.satellite)]
        self.request = self.rig.combine_request(self.sealed, valid=6)

    def group(self, timeout_seconds: float = 10) -> m.CombineGroup:
        self.sealed[0] = self.rig.seal(self.core)
        group = prefix_group(self.sealed[0], dict(enumerate(self.sealed)))
        assert group is not None
        return group.model_copy(update={"timeout_seconds": timeout_seconds})

    def by_reads(self) -> m.CombineReply:
        reply = self.core.combine(self.request)
        self.core.take_back(m.BatchRequest(batch="b", **BOOT))
        return reply

    def by_group(self, group: m.CombineGroup, contribution: TrainingActor | None) -> m.CombineReply:
        with ThreadPoolExecutor(1) as beside:
            if contribution is not None:
                beside.submit(contribution.contribute, m.Contribute(batch="b", group=group, **BOOT))
            reply = self.core.combine(self.request.model_copy(update={"group": group}))
        self.core.take_back(m.BatchRequest(batch="b", **BOOT))
        return reply


@pytest.fixture
def cells(tmp_path: Path, policy: Path) -> Cells:
    return Cells(tmp_path, policy)


def test_piece_by_piece_it_is_the_same_sum(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_groups, "PIECE_ELEMENTS", 1000)
    wanted, group = cells.by_reads(), cells.group()
    assert cells.by_group(group, cells.satellite).gradient_checksum == wanted.gradient_checksum
    assert cells.by_group(group, cells.satellite).gradient_checksum == wanted.gradient_checksum  # the group is kept


def test_a_core_of_a_higher_index_leads_its_groups(tmp_path: Path, policy: Path) -> None:
    """It took over from cell 0, which is a satellite now."""
    rig = Rig(tmp_path, policy, combine="groups")
    satellite, core = rig.core, rig.satellite()
    satellite.lay_down(m.LayDown(**BOOT))
    core.restore_base(m.RestoreBase.model_validate({"as_core": True, **BOOT}))
    for cell, actor in enumerate((satellite, core)):
        rig.open(actor)
        rig.run(actor, [twelve_executions()[cell]], index=cell)
    sealed = {0: rig.seal(satellite), 1: rig.seal(core)}
    assert sealed[0].manifest is not None
    other = m.Participant(cell=0, boot_epoch=1, accumulated=sealed[0].accumulated, manifest=sealed[0].manifest)
    request = rig.combine_request([], valid=2)
    request = request.model_copy(update={"own": sealed[1].accumulated, "participants": (other,)})
    wanted = core.combine(request)
    core.take_back(m.BatchRequest(batch="b", **BOOT))
    group = prefix_group(rig.seal(core), sealed)
    assert group is not None
    assert group.cells == (1, 0)
    with ThreadPoolExecutor(1) as beside:
        beside.submit(satellite.contribute, m.Contribute(batch="b", group=group, **BOOT))
        assert core.combine(request.model_copy(update={"group": group})).gradient_checksum == wanted.gradient_checksum
    assert core._groups._groups  # none broke, so it was not read


def test_a_member_that_does_not_come_is_read_one_sided_and_groups_start_afresh(cells: Cells) -> None:
    wanted, group = cells.by_reads(), cells.group(timeout_seconds=0.3)
    assert cells.by_group(group, None).gradient_checksum == wanted.gradient_checksum
    again = cells.group()
    assert again.name != group.name
    assert cells.by_group(again, cells.satellite).gradient_checksum == wanted.gradient_checksum


def test_a_satellite_whose_core_does_not_come_says_so(cells: Cells) -> None:
    request = m.Contribute(batch="b", group=cells.group(timeout_seconds=0.3), **BOOT)
    with pytest.raises(TransferFailed, match="group of cells"):
        cells.satellite.contribute(request)
    assert cells.satellite.status().phase is m.BatchPhase.SEALED


def test_a_gradient_other_than_the_sealed_one_is_refused(cells: Cells) -> None:
    flat = cells.satellite._buffer().flat
    flat += torch.ones_like(flat)
    with pytest.raises(TransferFailed, match="does not match its checksum"):
        cells.by_group(cells.group(), cells.satellite)
    assert cells.core.status().version == 0


def test_who_is_not_a_member_cannot_take_part(cells: Cells) -> None:
    group = cells.group().model_copy(update={"members": ((0, 1), (2, 1))})
    with pytest.raises(InvalidInput, match="cell 1 cannot be in a group"):
        cells.satellite.contribute(m.Contribute(batch="b", group=group, **BOOT))


def test_without_the_setting_or_without_satellites_there_is_no_group(cells: Cells) -> None:
    alone = dict(enumerate(cells.sealed[:1]))
    assert prefix_group(cells.sealed[0], alone) is None
    reading = cells.sealed[0].model_copy(update={"meeting": ""})
    assert prefix_group(reading, dict(enumerate(cells.sealed))) is None
    assert prefix_group(None, dict(enumerate(cells.sealed))) is None


class Peer:
    """An actor as a cell's client of it: one call at a time, in a thread."""

    def __init__(self, actor: TrainingActor, *, answers: bool = True) -> None:
        self.actor, self.answers = actor, answers
        self.contributed = 0

    async def status(self) -> m.ActorStatus:
        return self.actor.status()

    async def seal(self, request: m.BatchRequest) -> m.SealReply:
        return await asyncio.to_thread(self.actor.seal, request)

    async def combine(self, request: m.Combine) -> m.CombineReply:
        if request.group is not None and not self.answers:
            request = request.model_copy(update={"group": request.group.model_copy(update={"timeout_seconds": 0.3})})
        return await asyncio.to_thread(self.actor.combine, request)

    async def contribute(self, request: m.Contribute) -> m.BatchReply:
        if not self.answers:
            raise ActorUnavailable("does not answer")
        reply = await asyncio.to_thread(self.actor.contribute, request)
        self.contributed += 1
        return reply

    async def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("answers", [True, False])
async def test_the_step_that_combines_has_satellites_hand_in(cells: Cells, answers: bool) -> None:
    wanted = cells.by_reads()
    core, satellite = Peer(cells.core, answers=answers), Peer(cells.satellite, answers=answers)
    cell: Any = SimpleNamespace(index=0, is_core=True, boot_epoch=1, actor=core, peer_actor=lambda _index: satellite)
    held = Weights(version=0, checksum=cells.rig.start.checksum)
    applied = await TrainingActivities(cell, None).combine_update(  # pyright: ignore[reportArgumentType]
        CombineUpdate(
            run="r",
            batch="b",
            weights=held,
            participants=tuple(
                Sealed(
                    cell=one.cell,
                    boot_epoch=1,
                    accumulated=tuple((entry.index, entry.attempt) for entry in one.accumulated),
                    weights=held,
                )
                for one in cells.sealed
            ),
            normalizer=6,
            learning_rate=1e-3,
            betas=(0.9, 0.95),
            weight_decay=0.1,
            max_grad_norm=1.0,
            counters={},
        )
    )
    assert (applied.gradient_checksum, applied.weights.checksum) == (wanted.gradient_checksum, wanted.checksum)
    assert satellite.contributed == int(answers)

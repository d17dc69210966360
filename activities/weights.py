"""Bringing a rollout engine to one weight version, and proving that it is there.

The weights come from the cell's own training actor when it holds (or can read from the core, one-sided) exactly that
version; it writes them to memory-backed storage and the engine loads them from there. A version the core has moved on
from comes from its committed checkpoint. What was loaded is verified by checksum on both sides.
"""

import asyncio
import logging
from pathlib import Path

from temporalio import activity

from activities.cell import Cell
from infra.actor import ActorClient
from infra.checkpoints import CheckpointStore
from infra.checkpoints.contents import BESIDE_THE_MODEL
from infra.records.batches import checkpoint_of
from infra.records.cores import core_on_record
from workflows.messages.cell_steps import EngineVerified, LoadWeights
from workflows.messages.errors import ActorUnavailable, Fenced, StillHeld, TransferFailed, VersionMismatch
from workflows.messages.scheduling import Weights
from workflows.messages.training import (
    ActorRequest,
    ActorStatus,
    ExportWeights,
    ExposeSnapshot,
    PullSnapshot,
    ReleaseSnapshot,
    RestoreBase,
    RestoreCheckpoint,
    SnapshotReply,
)

_log = logging.getLogger(__name__)

SLOT_TRIES, SLOT_PAUSE_SECONDS = 60, 0.5


class WeightsActivities:
    """Runs on a cell's own queue."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._folders: dict[int, Path] = {}
        self._loaded_bytes: dict[int, int] = {}

    @activity.defn(name="load_weights")
    async def load_weights(self, request: LoadWeights) -> None:
        """Load the version unless the engine holds it already."""
        self._cell.fence.check(request.lease)
        folder = await self._folder(request.weights, request.lease)
        self._folders = {request.weights.version: folder}
        try:
            await self._verify(request.weights)
        except VersionMismatch:
            # What the engine must report is hashed here while it loads.
            await asyncio.gather(
                self._cell.engine.update_weights_from_disk(str(folder), str(request.weights.version)),
                asyncio.to_thread(self._cell.proof.expect, folder, request.weights),
            )
            self._loaded_bytes = {request.lease: await asyncio.to_thread(_weights_bytes, folder)}
            if self._cell.linker is None:
                await self._cell.engine.flush_cache(2.0)

    @activity.defn(name="swap_weights")
    async def swap_weights(self, request: LoadWeights) -> EngineVerified:
        """Load the version under the requests that run: they stand still meanwhile and go on over the KV they hold.

        Fails with the engine still paused, so that nothing is said with weights nobody has verified.
        """
        self._cell.fence.check(request.lease)
        engine = self._cell.engine
        folder = await self._folder(request.weights, request.lease)
        self._folders = {request.weights.version: folder}
        self._cell.paused = True
        await engine.pause("in_place")
        try:
            await self._verify(request.weights)  # an earlier attempt may have come this far
        except VersionMismatch:
            await engine.update_weights_from_disk(str(folder), str(request.weights.version), flush_cache=False)
            self._loaded_bytes = {request.lease: await asyncio.to_thread(_weights_bytes, folder)}
            await self._verify(request.weights)
        await engine.resume()
        self._cell.paused = False
        return self._verified(request)

    @activity.defn(name="verify_engine")
    async def verify_engine(self, request: LoadWeights) -> EngineVerified:
        """Raises VersionMismatch unless the engine itself reports this version and these tensors."""
        self._cell.fence.check(request.lease)
        await self._verify(request.weights)
        return self._verified(request)

    def _verified(self, request: LoadWeights) -> EngineVerified:
        return EngineVerified(weights=request.weights, bytes=self._loaded_bytes.get(request.lease, 0))

    async def _verify(self, weights: Weights) -> None:
        info = await self._cell.engine.model_info()
        if info.weight_version != str(weights.version):
            raise VersionMismatch(f"the engine serves version {info.weight_version}, not {weights.version}")
        folder = self._folders.get(weights.version)
        if folder is None:
            raise VersionMismatch(f"version {weights.version} was not loaded by this boot of the cell")
        reported, _ = await asyncio.gather(
            self._cell.engine.weights_checksum(), asyncio.to_thread(self._cell.proof.expect, folder, weights)
        )
        await asyncio.to_thread(self._cell.proof.verify, folder, weights, reported.total, dict(reported.tensors))

    async def _folder(self, weights: Weights, lease: int) -> Path:
        """A model folder with exactly these weights."""
        if weights.version == 0:
            return self._cell.base_model
        core, _ = await asyncio.to_thread(core_on_record, self._cell.records)
        if await ensure_actor_weights(self._cell, weights, lease, core):
            target = self._cell.published / f"v{weights.version:08d}"
            await asyncio.to_thread(self._cell.published.mkdir, parents=True, exist_ok=True)
            await self._cell.actor.export(
                ExportWeights(
                    boot_epoch=self._cell.boot_epoch,
                    lease_epoch=lease,
                    folder=str(target),
                    version=weights.version,
                    checksum=weights.checksum,
                )
            )
            await asyncio.to_thread(_keep_newest, self._cell.published, target)
            return target
        name = await asyncio.to_thread(checkpoint_of, self._cell.records, weights)
        if not name:
            raise VersionMismatch(f"version {weights.version} is neither at the core nor committed as a checkpoint")
        store = CheckpointStore(self._cell.checkpoints)
        # It hashes what the engine will load: a minute for a large model, in which heartbeats must go on.
        found = await asyncio.to_thread(store.find, weights.version, weights.checksum, unread=BESIDE_THE_MODEL)
        return found.folder


async def ensure_actor_weights(cell: Cell, weights: Weights, lease: int, core_cell: int) -> bool:
    """Whether the cell's actor holds `weights` now; a satellite reads them from the core if the core has them."""
    status = await cell.actor.status()
    if holds(status, weights):
        return True
    if cell.index == core_cell:
        return False
    core = cell.peer_actor(core_cell)
    try:
        core_status = await core.status()
        if not holds(core_status, weights):
            return False
        fence = ActorRequest(boot_epoch=core_status.boot_epoch, lease_epoch=core_status.lease_epoch).model_dump()
        snapshot = await _exposed(core, ExposeSnapshot(**fence, version=weights.version))
        try:
            await cell.actor.pull_snapshot(
                PullSnapshot(
                    boot_epoch=cell.boot_epoch,
                    lease_epoch=max(lease, status.lease_epoch),
                    version=weights.version,
                    checksum=weights.checksum,
                    manifest=snapshot.manifest,
                )
            )
        finally:
            await core.release_snapshot(ReleaseSnapshot(**fence, pin=snapshot.pin))
    except (ActorUnavailable, TransferFailed, VersionMismatch, Fenced) as error:
        _log.warning("cell %d cannot read version %d from the core: %s", cell.index, weights.version, error)
        return False
    finally:
        await core.close()
    return True


async def ensure_core(cell: Cell, weights: Weights, lease: int) -> None:
    """Let the cell's actor be the core, with exactly these committed weights and what belongs to them, from their
    checkpoint; if it is that already nothing changes.

    Raises VersionMismatch for weights that are not on record, Fenced if it holds newer ones, CheckpointUnusable.
    """
    status = await cell.actor.status()
    if status.is_core and holds(status, weights):
        return
    name = await asyncio.to_thread(checkpoint_of, cell.records, weights)
    if name is None:
        raise VersionMismatch(f"version {weights.version} is not on record: nobody can begin from it")
    whole = {
        "boot_epoch": cell.boot_epoch,
        "lease_epoch": max(lease, status.lease_epoch),
        "version": weights.version,
        "checksum": weights.checksum,
        "as_core": True,
    }
    if name:
        await cell.actor.restore_checkpoint(RestoreCheckpoint(**whole))
    else:
        await cell.actor.restore_base(RestoreBase(**whole))


async def _exposed(core: ActorClient, request: ExposeSnapshot) -> SnapshotReply:
    """Waits here, not in the core, for the readers of an older snapshot. Raises StillHeld when they stay."""
    for _ in range(SLOT_TRIES - 1):
        try:
            return await core.expose_snapshot(request)
        except StillHeld:
            await asyncio.sleep(SLOT_PAUSE_SECONDS)
    return await core.expose_snapshot(request)


def holds(status: ActorStatus, weights: Weights) -> bool:
    """Whether the actor that said this of itself holds exactly these weights."""
    return status.version == weights.version and status.checksum == weights.checksum


def _weights_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _keep_newest(folder: Path, keep: Path) -> None:
    """Memory-backed storage holds one version per cell."""
    import shutil

    for other in folder.iterdir():
        if other != keep:
            shutil.rmtree(other, ignore_errors=True)

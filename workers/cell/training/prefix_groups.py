"""The second way to bring a batch's gradients together: communication groups over the cells that joined in order.

One group per prefix {0, 1}, {0, 1, 2}, ... of the training cells' actors, made when a prefix is first used and kept:
the core comes first and hosts the meeting point. Members hand their sums to the core piece by piece, and the core adds
them in the fixed order of `combine`, so the result has the same bits as with one-sided reads. Every sum is verified
against its manifest as there.

A lost member breaks a group. Then the core reads one-sided instead, and moves on to a new generation of groups; nobody
uses a group of an older one again. On CUDA the groups are NCCL's: written, never tried.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from xxhash import xxh3_64

from workflows.messages.errors import InvalidInput, TransferFailed
from workflows.messages.training import CombineGroup, Participant

log = logging.getLogger(__name__)

PIECE_ELEMENTS = 1 << 24


class PrefixGroups:
    """Of the actor of `cell` on `host`. One caller, the compute thread."""

    def __init__(self, cell: int, host: str) -> None:
        self._cell, self._host = cell, host
        self._store: TCPStore | None = None
        self._generation = 0
        self._groups: dict[str, Any] = {}

    @property
    def meeting(self) -> str:
        """``host:port/generation``: where members of the core's groups meet. The core's; made when first asked for.

        It listens on all addresses without authentication, as the transfer engine does: private networks only.
        """
        if self._store is None:
            self._store = TCPStore(self._host, 0, None, is_master=True, wait_for_workers=False)
        return f"{self._host}:{self._store.port}/{self._generation}"

    def contribute(self, group: CombineGroup, flat: Tensor) -> None:
        """A satellite's part: hand `flat` [elements] to the core. Raises TransferFailed if the group breaks."""
        try:
            for piece in flat.split(PIECE_ELEMENTS):
                self._gather(group, piece, [])
        except RuntimeError as error:
            self._groups.clear()
            raise TransferFailed(f"the group of cells {group.cells} broke: {error}") from error

    def total(self, group: CombineGroup, own: Tensor, participants: Sequence[Participant]) -> Tensor | None:
        """The core's part: `own` plus the sums of `participants` in order of their cells, [elements]; None if the group
        broke. Raises TransferFailed if what came is not what a manifest promises."""
        in_order = sorted(participants, key=lambda participant: participant.cell)
        found, checks = own.clone(), {participant.cell: xxh3_64() for participant in in_order}
        try:
            for piece in found.split(PIECE_ELEMENTS):
                parts = [torch.empty_like(piece) for _ in group.cells]
                self._gather(group, piece.clone(), parts)
                by_cell = dict(zip(group.cells, parts, strict=True))
                for cell in checks:
                    piece += by_cell[cell]
                    checks[cell].update(_bytes_of(by_cell[cell]))
        except RuntimeError as error:
            log.warning("the group of cells %s broke, reading one-sided instead: %s", group.cells, error)
            self._generation += 1
            self._groups.clear()
            return None
        for participant in in_order:
            if participant.manifest.entries[0].xxh3 != checks[participant.cell].intdigest():
                raise TransferFailed(f"the gradient that cell {participant.cell} handed in does not match its checksum")
        return found

    def _gather(self, group: CombineGroup, piece: Tensor, parts: list[Tensor]) -> None:
        options = dist.GatherOptions()  # pyright: ignore[reportAttributeAccessIssue]
        options.rootRank = 0
        self._group(group).gather([parts] if parts else [], [piece], options).wait()

    def _group(self, group: CombineGroup) -> Any:
        if self._cell not in group.cells:
            raise InvalidInput(f"cell {self._cell} cannot be in a group of cells {group.cells}", field="group.cells")
        if group.name not in self._groups:
            generation = group.name.split("/", 1)[0]
            self._groups = {name: one for name, one in self._groups.items() if name.split("/", 1)[0] == generation}
            self._groups[group.name] = self._meet(group)
        return self._groups[group.name]

    def _meet(self, group: CombineGroup) -> Any:
        timeout = timedelta(seconds=group.timeout_seconds)
        host, port = group.meeting.split("/")[0].rsplit(":", 1)
        store = self._store if self._cell == group.cells[0] else None
        store = store or TCPStore(host, int(port), None, is_master=False, timeout=timeout)
        rank, size = group.cells.index(self._cell), len(group.cells)
        prefixed = PrefixStore(group.name, store)
        if torch.cuda.is_available():
            return dist.ProcessGroupNCCL(prefixed, rank, size, timeout)  # pyright: ignore
        return dist.ProcessGroupGloo(prefixed, rank, size, timeout)  # pyright: ignore


def _bytes_of(piece: Tensor) -> memoryview:
    return piece.detach().cpu().contiguous().view(torch.uint8).numpy().data

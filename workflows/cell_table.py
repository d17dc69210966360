"""The Scheduler's view of the cells: roles, boots, who serves the published version. Pure bookkeeping."""

from pydantic import Field

from workflows.messages import ids
from workflows.messages.base import Message
from workflows.messages.fleet import CellReport, CellRole, CellSpec
from workflows.messages.scheduling import Member
from workflows.policy.state import CellView

_GIVEN_AWAY = (CellRole.TO_TRAINING, CellRole.RETIRING)
_SETTLED = (CellRole.ROLLOUT, CellRole.TRAINING)
_COMING = (CellRole.STARTING, CellRole.TO_TRAINING, CellRole.TO_ROLLOUT)


class CellEntry(Message):
    """One cell as last reported. `version`: what its engine serves, when in rollout."""

    spec: CellSpec
    role: CellRole = CellRole.STARTING
    boot_epoch: int = 0
    queue: str = ""
    version: int | None = None
    reason: str = ""
    leaves_at: float | None = Field(default=None, description="reclaimed: when it has to be gone at the latest")
    led: bool = Field(default=False, description="it was the core, and has handed that over")
    late: str = Field(default="", description="not gone at its deadline: what it hung at when that was last looked at")


class CellTable:
    """All cells, by index. `core` is the one that holds the optimizer, by the `change`-th hand-over.

    `core_stays`: it is to leave, and nobody can take over: until somebody can, it works on.
    """

    def __init__(self, entries: tuple[CellEntry, ...], core: int = 0, change: int = 0) -> None:
        self.entries = {entry.spec.index: entry for entry in entries}
        self.core, self.change, self.core_stays = core, change, False

    def apply(self, report: CellReport, asked: str = "") -> CellEntry | None:
        """Take a report; returns the entry before it, or None when it is of an older boot (or of no cell of this
        run) and changes nothing.

        `asked`: the move that the cell was last asked to make. That it serves after something older (its boot, a
        publish) does not bring back a cell that is on its way out of rollout: what comes of that move is still to be
        reported by the same boot.
        """
        before = self.entries.get(report.cell)
        if before is None or report.boot_epoch < before.boot_epoch:
            return None
        same_boot, older = report.boot_epoch == before.boot_epoch, bool(asked) and report.move != asked
        leaves = report.role is CellRole.ROLLOUT and before.role in _GIVEN_AWAY and same_boot and older
        self.entries[report.cell] = before.model_copy(
            update={
                "role": before.role if leaves else report.role,
                "boot_epoch": report.boot_epoch,
                "queue": report.queue or before.queue,
                "version": None if leaves else report.version,
                "reason": report.reason,
            }
        )
        return before

    def set_role(self, cell: int, role: CellRole) -> None:
        """The Scheduler has asked for a move: the cell's capacity is gone from now on."""
        self.entries[cell] = self.entries[cell].model_copy(update={"role": role, "version": None})

    def add(self, spec: CellSpec) -> None:
        """A cell joins the fleet; its worker has not booted yet."""
        self.entries[spec.index] = CellEntry(spec=spec)

    def reclaim(self, cell: int, leaves_at: float) -> None:
        """It has to be gone at `leaves_at`, or earlier if that was asked for before."""
        entry = self.entries[cell]
        soonest = leaves_at if entry.leaves_at is None else min(leaves_at, entry.leaves_at)
        self.entries[cell] = entry.model_copy(update={"leaves_at": soonest})

    def is_late(self, cell: int, why: str) -> None:
        """It is not gone at its deadline."""
        self.entries[cell] = self.entries[cell].model_copy(update={"late": why})

    def late(self) -> dict[int, str]:
        """Cells that are not gone at their deadline, and what they hang at."""
        return {index: entry.late for index, entry in sorted(self.entries.items()) if entry.late}

    def remove(self, cell: int) -> None:
        self.entries.pop(cell, None)

    def heirs(self, *, settled: bool = True) -> tuple[int, ...]:
        """Cells that can take over the core, the best one first; with `settled` False also those that may be able to
        when what they are doing is done.

        Any trainer can: checkpoints know names, not layouts. One of the core's own layout computes alike and is as
        large; one that trains already need not leave anything.
        """
        core, roles = self.entries[self.core].spec, _SETTLED if settled else (*_SETTLED, *_COMING)
        able = {
            index: entry
            for index, entry in self.entries.items()
            if index != self.core and entry.spec.trains and entry.leaves_at is None and entry.role in roles
        }

        def rank(index: int) -> tuple[bool, bool, int]:
            spec = able[index].spec
            other_layout = (spec.stages, spec.replicas) != (core.stages, core.replicas)
            return other_layout, able[index].role is not CellRole.TRAINING, index

        return tuple(sorted(able, key=rank))

    def name_core(self, cell: int) -> None:
        """`cell` is the core from now on; the one before is a cell like any other."""
        self.entries[self.core] = self.entries[self.core].model_copy(update={"led": True})
        self.entries[cell] = self.entries[cell].model_copy(update={"led": False})
        self.core, self.change, self.core_stays = cell, self.change + 1, False

    def in_order(self) -> list[int]:
        """Indices in the order in which cells train: the core, then the others."""
        return sorted(self.entries, key=lambda index: (index != self.core, index))

    def role(self, cell: int) -> CellRole:
        return self.entries[cell].role

    def serving(self, version: int) -> tuple[int, ...]:
        """Cells in rollout that serve `version`."""
        return tuple(
            index
            for index, entry in sorted(self.entries.items())
            if entry.role is CellRole.ROLLOUT and entry.version == version
        )

    def in_role(self, *roles: CellRole) -> tuple[int, ...]:
        return tuple(index for index, entry in sorted(self.entries.items()) if entry.role in roles)

    def capacity(self, version: int) -> int:
        """C_R at the published version; a reclaimed cell, which drains, counts 0."""
        return sum(self.entries[index].spec.slots for index in self._staying(version))

    def _staying(self, version: int) -> list[int]:
        return [index for index in self.serving(version) if not self._leaves(index)]

    def _leaves(self, index: int) -> bool:
        is_kept = self.core_stays and index == self.core
        return self.entries[index].leaves_at is not None and not is_kept

    def views(self, version: int) -> tuple[CellView, ...]:
        """What the policy sees, in the order in which cells train."""
        serving = set(self._staying(version))
        return tuple(
            CellView(
                index=index,
                role=self.entries[index].role,
                slots=self.entries[index].spec.slots,
                trains=self.entries[index].spec.trains and not self._leaves(index),
                serving=index in serving,
                leaving=self._leaves(index),
            )
            for index in self.in_order()
        )

    def member(self, cell: int) -> Member:
        entry = self.entries[cell]
        return Member(cell=cell, boot_epoch=entry.boot_epoch, queue=entry.queue, core=self.core, change=self.change)

    def peers(self, leaving: int, version: int) -> dict[str, str]:
        """Engine -> activity queue of the cells that may take over from `leaving`."""
        return {ids.engine_id(index): self.entries[index].queue for index in self.serving(version) if index != leaving}

    def carry(self) -> tuple[CellEntry, ...]:
        return tuple(entry for _, entry in sorted(self.entries.items()))

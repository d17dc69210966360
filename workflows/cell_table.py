"""The Scheduler's view of the cells: roles, boots, who serves the published version. Pure bookkeeping."""

from pydantic import Field

from workflows.messages import ids
from workflows.messages.base import Message
from workflows.messages.fleet import CellReport, CellRole, CellSpec
from workflows.messages.scheduling import Member
from workflows.policy.state import CellView

_GIVEN_AWAY = (CellRole.TO_TRAINING, CellRole.RETIRING)


class CellEntry(Message):
    """One cell as last reported. `version`: what its engine serves, when in rollout."""

    spec: CellSpec
    role: CellRole = CellRole.STARTING
    boot_epoch: int = 0
    queue: str = ""
    version: int | None = None
    reason: str = ""
    leaves_at: float | None = Field(default=None, description="reclaimed: when it has to be gone at the latest")


class CellTable:
    """All cells, by index."""

    def __init__(self, entries: tuple[CellEntry, ...]) -> None:
        self.entries = {entry.spec.index: entry for entry in entries}

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

    def remove(self, cell: int) -> None:
        self.entries.pop(cell, None)

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
        return [index for index in self.serving(version) if self.entries[index].leaves_at is None]

    def views(self, version: int) -> tuple[CellView, ...]:
        """What the policy sees."""
        serving = set(self._staying(version))
        return tuple(
            CellView(
                index=index,
                role=entry.role,
                slots=entry.spec.slots,
                trains=entry.spec.trains and entry.leaves_at is None,
                serving=index in serving,
                leaving=entry.leaves_at is not None,
            )
            for index, entry in sorted(self.entries.items())
        )

    def member(self, cell: int) -> Member:
        entry = self.entries[cell]
        return Member(cell=cell, boot_epoch=entry.boot_epoch, queue=entry.queue)

    def peers(self, leaving: int, version: int) -> dict[str, str]:
        """Engine -> activity queue of the cells that may take over from `leaving`."""
        return {ids.engine_id(index): self.entries[index].queue for index in self.serving(version) if index != leaving}

    def carry(self) -> tuple[CellEntry, ...]:
        return tuple(entry for _, entry in sorted(self.entries.items()))

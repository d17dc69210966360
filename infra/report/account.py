"""The whole account of a run: its moves with what came of them, what was moved, what cells did, the totals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.report.changes import Change, Entry, Roles
from infra.report.cuts import Moved, attributed
from infra.report.moves import Move, moves_of
from infra.report.reading import Records
from infra.report.totals import Totals, totals
from infra.report.usage import Busy, CellUse, use


@dataclass(frozen=True)
class Account:
    """`moved`: transition -> what it did to requests; `moves`: decision (token) -> what came of it."""

    records: Records
    roles: Roles
    moves: Mapping[str, Move]
    moved: Mapping[str, Moved]
    cells: Sequence[CellUse]
    totals: Totals

    def move_of(self, entry: Entry) -> Move | None:
        return self.moves.get(entry.token)

    def moved_by(self, changes: Sequence[Change]) -> Moved:
        """What these transitions did to requests, added up."""
        found = [self.moved[change.transition] for change in changes if change.transition in self.moved]
        return Moved(
            requests=sum(one.requests for one in found),
            resumed=sum(one.resumed for one in found),
            pause_seconds=sum(one.pause_seconds for one in found),
            longest_pause_seconds=max((one.longest_pause_seconds for one in found), default=0.0),
            unheard=sum(one.unheard for one in found),
            kv_reused=sum(one.kv_reused for one in found),
            kv_recomputed=sum(one.kv_recomputed for one in found),
        )


def account(records: Records) -> Account:
    """Pure: everything follows from the records."""
    roles = records.roles()
    moved, unexplained = attributed(records.changes, records.cuts, records.resumed)
    moves = moves_of(records.entries, records.changes, roles, records.work(), records.end)
    cells = use(roles, Busy(records))
    found = totals(records, moves, moved, len(unexplained), cells)
    return Account(records, roles, {move.entry.token: move for move in moves}, moved, cells, found)

"""Who led which batch, and that the core was handed over once at a time, at weights that were there (invariant 6)."""

from bisect import bisect_right
from itertools import pairwise

from sqlalchemy import Engine, select

from infra.audit.reader import stream
from infra.audit.report import Findings
from infra.records import schema


class Cores:
    """The cell that was the core at any moment: cell 0, then whoever a hand-over named."""

    def __init__(self, named: list[tuple[float, int]]) -> None:
        self._at = [at for at, _ in named]
        self._cells = (0, *(cell for _, cell in named))

    def at(self, moment: float) -> int:
        """`moment`: seconds since the epoch."""
        return self._cells[bisect_right(self._at, moment)]


def check_cores(engine: Engine, findings: Findings) -> Cores:
    """Check every hand-over of the core on record."""
    rows = list(stream(engine, select(schema.cores).order_by(schema.cores.c.change)))
    made = {row.version for row in stream(engine, select(schema.updates.c.version))} | {0}
    for number, row in enumerate(rows, 1):
        subject = f"hand-over {row.change}"
        findings.expect(row.change == number, "core-gap", subject, f"it is the {number}. on record")
        findings.expect(row.version in made, "core-version", subject, f"to cell {row.cell} at version {row.version}")
    for before, after in pairwise(rows):
        subject, detail = f"hand-over {after.change}", f"version {after.version} at {after.named_at}"
        following = after.version >= before.version and after.named_at >= before.named_at
        findings.expect(following, "core-version", subject, f"{detail} after {before.version} at {before.named_at}")
    return Cores(sorted((row.named_at, row.cell) for row in rows))

"""Which cell is the core. The Scheduler decides it; this copy is for cells that boot, and those that look for it."""

import time

from sqlalchemy import Engine, insert, select

from infra.records.schema import cores
from workflows.messages.control import RecordCore
from workflows.messages.errors import Fenced


def core_on_record(engine: Engine) -> tuple[int, int]:
    """The core, and the number of the hand-over that made it so: cell 0 by none."""
    query = select(cores.c.cell, cores.c.change).order_by(cores.c.change.desc()).limit(1)
    with engine.connect() as connection:
        row = connection.execute(query).first()
    return (row.cell, row.change) if row is not None else (0, 0)


def name_core(engine: Engine, named: RecordCore) -> None:
    """Record a hand-over, once. Raises Fenced when it went to another cell."""
    with engine.begin() as connection:
        row = connection.execute(select(cores.c.cell).where(cores.c.change == named.change)).first()
        if row is None:
            connection.execute(
                insert(cores).values(
                    change=named.change,
                    cell=named.cell,
                    version=named.weights.version,
                    checksum=named.weights.checksum,
                    named_at=time.time(),
                )
            )
        elif row.cell != named.cell:
            raise Fenced(f"hand-over {named.change} made cell {row.cell} the core, not cell {named.cell}")

"""Boot epochs: which start of a component is the newest. An older one is fenced by its lower number."""

import os
import time

from sqlalchemy import Engine, func, insert, select
from sqlalchemy.exc import IntegrityError

from infra.records.schema import boots, engines
from workflows.messages.errors import Transient

_ATTEMPTS = 20


def next_boot(engine: Engine, component: str, pid: int | None = None) -> int:
    """Record a start of `component` (``cell-2``, ``proxy``, ...) and return its boot epoch: 1, 2, 3, ...

    Two starts at the same time get different epochs. Raises Transient after 20 collisions.
    """
    newest = select(func.coalesce(func.max(boots.c.boot_epoch), 0)).where(boots.c.component == component)
    for _ in range(_ATTEMPTS):
        try:
            with engine.begin() as connection:
                epoch = connection.execute(newest).scalar_one() + 1
                connection.execute(
                    insert(boots).values(
                        component=component, boot_epoch=epoch, booted_at=time.time(), pid=pid or os.getpid()
                    )
                )
        except IntegrityError:
            continue
        return epoch
    raise Transient(f"no boot epoch for {component}: {_ATTEMPTS} other starts were faster")


def latest_boot(engine: Engine, component: str) -> int | None:
    """The newest boot epoch of `component`, or None when it never started."""
    with engine.connect() as connection:
        return connection.execute(
            select(func.max(boots.c.boot_epoch)).where(boots.c.component == component)
        ).scalar_one()


def open_doors(engine: Engine) -> list[str]:
    """Engines with an open door, of those whose present boot is the one on record with the proxy."""
    with engine.connect() as connection:
        rows = connection.execute(select(engines.c.engine, engines.c.boot_epoch).where(engines.c.door == "open")).all()
    return [row.engine for row in rows if row.boot_epoch == latest_boot(engine, row.engine)]

"""The folder, database and object store of a synthetic run, and the ids in it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save
from sqlalchemy import Engine, Table, delete, insert, select, update

from infra.objects import ObjectStore
from infra.records import schema
from infra.records.database import open_database

RUN = "synthetic"
T0 = 1_700_000_000.0
BURST_SECONDS = 50.0
GROUPS, MEMBERS, SLOTS = 4, 3, 4
REWARDS = {
    "first": [[1.0, 0.0, 0.0], [1.0, None, 0.25], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]],
    "second": [[0.5, 0.0, 1.0], [1.0, None, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]],
}
DISPATCHED_AT = {"first": 0, "second": 2}


@dataclass
class SyntheticRun:
    """A recorded run on disk, with what a planted fault needs to change it."""

    folder: Path
    engine: Engine
    store: ObjectStore

    @classmethod
    def open(cls, folder: Path, database_url: str = "") -> "SyntheticRun":
        engine = open_database(database_url or f"sqlite:///{folder / 'records.db'}", create=True)
        return cls(folder, engine, ObjectStore(f"file://{folder / 'objects'}"))

    def add(self, table: Table, *rows: dict[str, Any]) -> None:
        with self.engine.begin() as connection:
            connection.execute(insert(table), list(rows))

    def change(self, table: Table, key: dict[str, Any], **values: Any) -> None:
        """Set columns of the rows that `key` names; at least one must be there."""
        with self.engine.begin() as connection:
            where = [table.c[name] == value for name, value in key.items()]
            if connection.execute(update(table).where(*where).values(**values)).rowcount < 1:
                raise LookupError(f"no {table.name} {key}")

    def remove(self, table: Table, **key: Any) -> None:
        with self.engine.begin() as connection:
            where = [table.c[name] == value for name, value in key.items()]
            if connection.execute(delete(table).where(*where)).rowcount < 1:
                raise LookupError(f"no {table.name} {key}")

    def row(self, table: Table, **key: Any) -> dict[str, Any]:
        """The first row that `key` names, in primary key order."""
        where = [table.c[name] == value for name, value in key.items()]
        with self.engine.connect() as connection:
            found = connection.execute(select(table).where(*where).order_by(*table.primary_key)).mappings().first()
        if found is None:
            raise LookupError(f"no {table.name} {key}")
        return dict(found)

    def repack(self, batch: str, micro_step: int, *, honest: bool = True, header=None, **arrays: np.ndarray) -> None:
        """Replace parts of a payload; `honest` records the new hash, so that only the content is wrong."""
        row = self.row(schema.micro_steps, batch=batch, micro_step=micro_step)
        blob = self.store.read(row["uri"])
        size = int.from_bytes(blob[:8], "little")
        old = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["header"])
        ref = self.store.put(row["uri"], save(load(blob) | arrays, metadata={"header": json.dumps(header or old)}))
        if honest:
            self.change(schema.micro_steps, {"batch": batch, "micro_step": micro_step}, sha256=ref.sha256)

    def payload(self, batch: str, micro_step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays (own copies) and header of a payload."""
        blob = self.store.read(self.row(schema.micro_steps, batch=batch, micro_step=micro_step)["uri"])
        size = int.from_bytes(blob[:8], "little")
        header = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["header"])
        return {name: array.copy() for name, array in load(blob).items()}, header


def execution_id(burst: str, group: int, member: int) -> str:
    return f"{RUN}/execution/{burst}/{group:04d}/{member:02d}"


def batch_id(burst: str, step: int) -> str:
    return f"{RUN}/batch/{burst}/{step}"

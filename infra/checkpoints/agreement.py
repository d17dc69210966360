"""Whether a checkpoint says of its batch what the batch itself has recorded."""

from sqlalchemy import Engine, select

from infra.checkpoints.manifest import MANIFEST, Checkpoint, Damage
from infra.records.schema import batches, updates


def record_damage(engine: Engine, checkpoint: Checkpoint) -> tuple[Damage, ...]:
    """Differences between the ledger and the records, if the records say that this checkpoint is the committed one.

    A checkpoint that no batch has recorded has nothing to be compared with.
    """
    meta, ledger = checkpoint.meta, checkpoint.meta.ledger
    with engine.connect() as connection:
        update = connection.execute(select(updates).where(updates.c.checkpoint == checkpoint.folder.name)).first()
        if update is None:
            return ()
        batch = connection.execute(select(batches).where(batches.c.batch == update.batch)).first()
    found = {"version": meta.version, "checksum": meta.checksum, "batch": meta.batch}
    recorded: dict[str, object] = {"version": update.version, "checksum": update.checksum, "batch": update.batch}
    if batch is not None:
        found |= {
            "version_before": ledger.version_before,
            "groups": list(ledger.groups),
            "micro_steps": [(e.micro_step, e.attempt, e.cell, e.boot_epoch) for e in ledger.micro_steps],
            "valid_executions": ledger.valid_executions,
            "gradient_checksum": ledger.gradient_checksum,
        }
        recorded |= {
            "version_before": batch.version_before,
            "groups": batch.groups,
            "micro_steps": sorted((e["index"], e["attempt"], e["cell"], e["boot_epoch"]) for e in batch.accepted or ()),
            "valid_executions": batch.normalizer,
            "gradient_checksum": batch.gradient_checksum,
        }
    wrong = [name for name in found if found[name] != recorded[name]]
    return tuple(Damage(file=MANIFEST, fault=f"has another {name} than the batch recorded") for name in wrong)

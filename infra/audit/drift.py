"""The weights checksum over its whole way: update, batch, gradients, engines all name the same one (invariant 6).

An update makes a version and its checksum. Whatever names the version later, names the checksum it really held; rows
of older records name none and are passed over.
"""

from sqlalchemy import Engine, select

from infra.audit.reader import stream
from infra.audit.report import Findings
from infra.records import schema


def check_checksums(engine: Engine, findings: Findings) -> None:
    """Check everything that names a version of weights against the update that made it."""
    updates, batches, claims, engines = schema.updates, schema.batches, schema.claims, schema.engines
    made = {row.version: row.checksum for row in stream(engine, select(updates.c.version, updates.c.checksum))}

    def check(subject: str, what: str, version: int | None, checksum: str | None) -> None:
        if version in made and checksum:
            detail = f"{what} {version} has {checksum[:12]}, its update {made[version][:12]}"
            findings.expect(made[version] == checksum, "checksum-differs", subject, detail)

    for row in stream(engine, select(batches)):
        check(row.batch, "trained version", row.version_before, row.checksum_before)
        check(row.batch, "version made", row.version_after, row.checksum_after)
    for row in stream(engine, select(claims).where(claims.c.done_at.is_not(None))):
        subject = f"{row.batch} micro-step {row.micro_step} attempt {row.attempt}"
        check(subject, f"cell {row.cell}'s version", row.version, row.checksum)
    for row in stream(engine, select(schema.cores)):
        check(f"hand-over {row.change}", "handed-over version", row.version, row.checksum)
    for row in stream(engine, select(engines)):
        check(f"engine {row.engine}", "served version", row.version, row.checksum)

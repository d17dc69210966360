"""Re-checking a recorded run from its raw records.

The audit shares the schema and the settings with the product and nothing else: it has its own reading of token blobs,
prefixes, payloads, rewards and capacity, so that a fault in the product's code cannot hide itself here.

    audit_run(run_dir)                one run folder, as `gyre audit RUN` does
    audit_records(engine, store)      any database and object store
"""

from infra.audit.report import AuditReport, Finding
from infra.audit.run import audit_records, audit_run

__all__ = ["AuditReport", "Finding", "audit_records", "audit_run"]

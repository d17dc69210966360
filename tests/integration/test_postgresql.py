"""A whole burst whose records lie in PostgreSQL: real Temporal, workflows, proxy, harness, scoring and training."""

from pathlib import Path

import pytest
from sqlalchemy import func, select

from infra.audit import audit_run
from infra.records.schema import calls, executions, updates
from infra.settings.fleet import Fleet
from tests.integration.conftest import Run
from tests.integration.scene import burst, paced_fleet
from workers.supervisor import LocalStack
from workers.supervisor.run_folder import open_manifest
from workflows.messages.errors import InvalidInput

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def test_a_burst_on_postgresql_is_clean_under_audit(tmp_path: Path, postgresql) -> None:
    url = postgresql.new_database()
    fleet = paced_fleet(tmp_path, run="records", cells=2).model_copy(update={"database_url": url})
    async with LocalStack(fleet, tmp_path / "run") as stack:
        await stack.ready(timeout_seconds=300)
        run = Run(stack)
        report = await (await run.start(burst("records"))).result()
        state = await run.rested()
        assert report["version"] == 2
        assert state.dispatched == state.finished == 16
        with stack.records.connect() as connection:
            assert connection.dialect.name == "postgresql"
            assert connection.scalar(select(func.count()).select_from(executions)) == 16
            assert connection.scalar(select(func.count()).select_from(calls)) >= 16 * 4
            assert connection.scalars(select(updates.c.version).order_by(updates.c.version)).all() == [0, 1, 2]
    audit = audit_run(tmp_path / "run", at_rest=True)
    assert not audit.findings, audit.findings
    assert not (tmp_path / "run" / "records.db").exists()
    with pytest.raises(InvalidInput, match="database_url: holds the records of another run"):
        open_manifest(Fleet(run="other", database_url=url), tmp_path / "other")

"""One audit, whatever kind of database holds the records."""

from infra.audit import audit_records, audit_run
from tests.infra.audit.faults.requests import retry_reused_its_request_id
from tests.infra.audit.recording import SyntheticRun


def test_the_audit_says_the_same_of_both(sound_folder, sound_on_postgresql):
    folder, _ = sound_on_postgresql
    on_sqlite, on_postgresql = (audit_run(run, at_rest=True) for run in (sound_folder, folder))
    assert on_postgresql.ok
    assert on_postgresql == on_sqlite


def test_a_fault_is_found_in_postgresql(sound_on_postgresql, postgresql):
    folder, sound = sound_on_postgresql
    run = SyntheticRun.open(folder, postgresql.new_database(like=sound))
    retry_reused_its_request_id(run)
    try:
        with run.engine.connect() as connection:
            assert connection.dialect.name == "postgresql"
        assert audit_records(run.engine, run.store, at_rest=True).codes() == {"rid-repeated"}
    finally:
        run.engine.dispose()

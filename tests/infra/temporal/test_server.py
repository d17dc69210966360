"""The development server of a stack, started as the supervisor starts it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest
from infra.temporal.server import SEARCH_ATTRIBUTES, require_search_attributes, server_command
from tests.workflows.server import connect
from workers.supervisor.run_folder import open_manifest

HELD = 30
KEYS = [SearchAttributeKey.for_keyword(name) for name in SEARCH_ATTRIBUTES]


@pytest.fixture
def manifest(tmp_path: Path) -> RunManifest:
    return open_manifest(Fleet(), tmp_path / "run")


@contextmanager
def killed_at_the_end(manifest: RunManifest) -> Iterator[str]:
    """The server's address; it is killed, not told to stop."""
    server = subprocess.Popen(server_command(manifest), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield manifest.temporal_address
    finally:
        server.kill()
        server.wait(60)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_killed_server_has_lost_nothing_that_it_acknowledged(manifest: RunManifest):
    with killed_at_the_end(manifest) as address:
        client = await connect(address)
        for number in range(HELD):
            shown = TypedSearchAttributes([SearchAttributePair(key, "known at once") for key in KEYS])
            await client.start_workflow("Held", id=f"held-{number}", task_queue="nobody", search_attributes=shown)
    assert (manifest.folder / "temporal.db").read_bytes()[18:20] == b"\x02\x02"  # what SQLite writes there in WAL mode
    with killed_at_the_end(manifest) as address:
        client = await connect(address)
        await require_search_attributes(client)
        for number in range(HELD):
            described = await client.get_workflow_handle(f"held-{number}").describe()
            assert described.status is WorkflowExecutionStatus.RUNNING
            assert [described.typed_search_attributes[key] for key in KEYS] == ["known at once"] * len(KEYS)


def test_the_database_is_a_file_of_the_run_folder_that_no_commit_waits_for(manifest: RunManifest):
    command = server_command(manifest)
    pragmas = {command[place + 1] for place, word in enumerate(command) if word == "--sqlite-pragma"}
    assert pragmas == {"journal_mode=wal", "synchronous=normal"}
    assert command[command.index("--db-filename") + 1] == str(manifest.folder / "temporal.db")
    assert all(f"{name}=Keyword" in command for name in SEARCH_ATTRIBUTES)

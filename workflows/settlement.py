"""What a batch asks for, commits and reports, from its own bookkeeping."""

from workflows.messages import ids
from workflows.messages.batch import BatchSpec, CombineUpdate, CommitBatch, Sealed, UpdateApplied
from workflows.messages.burst import StepReport
from workflows.messages.group import AdmittedGroup
from workflows.messages.scheduling import OpenBatch
from workflows.stream import Stream


def normalizer(groups: list[AdmittedGroup]) -> int:
    """V: valid executions of groups with signal; what the summed gradient is divided by, once."""
    return sum(group.valid for group in groups if group.no_signal is None)


def in_order(groups: list[AdmittedGroup]) -> tuple[str, ...]:
    """Ids in the durable order of admission: signals may overtake each other, so groups may arrive in another."""
    return tuple(ids.group_id(group.burst, group.group) for group in sorted(groups, key=lambda group: group.sequence))


def open_of(spec: BatchSpec) -> OpenBatch:
    """What the batch asks of the Scheduler."""
    burst = spec.spec
    return OpenBatch(
        batch=spec.batch,
        burst=burst.name,
        groups=burst.groups_per_step,
        refill=burst.training.refill,
        policy=burst.policy,
        later_groups=(burst.steps - spec.step - 1) * burst.groups_per_step,
        seed=burst.seed,
    )


def combine_of(spec: BatchSpec, groups: list[AdmittedGroup], accounts: tuple[Sealed, ...]) -> CombineUpdate:
    """What the core is asked to do with the participants' gradients."""
    training = spec.spec.training
    return CombineUpdate(
        run=spec.spec.run,
        batch=spec.batch,
        weights=spec.weights,
        participants=accounts,
        normalizer=normalizer(groups),
        learning_rate=training.learning_rate,
        betas=training.betas,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        counters=spec.counters,
        groups=in_order(groups),
    )


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
        groups=in_order(groups),
        accepted=stream.in_order(),
        normalizer=normalizer(groups),
        gradient_checksum=update.gradient_checksum if update is not None else "",
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
    # Staleness counts to the update, by the version before it: later steps of a burst are staler than admission was.
    before = spec.weights.version
    stale = [group.staleness + before - group.version for group in groups if group.staleness is not None]
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

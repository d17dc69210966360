"""Campaign: burst after burst with the same settings."""

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows.burst import Burst
from workflows.messages import ids
from workflows.messages.base import Message
from workflows.messages.burst import BurstReport, CampaignSpec


class CampaignReport(Message):
    """The reports of a campaign's bursts, in order."""

    run: str
    campaign: str
    bursts: tuple[BurstReport, ...]


@workflow.defn(failure_exception_types=[TypeError])
class Campaign:
    """`bursts` bursts, one after the other; cancelling it cancels the burst that runs. Without its file it fails."""

    @workflow.run
    async def run(self, spec: CampaignSpec) -> CampaignReport:
        expected = ids.campaign_id(spec.run, spec.name)
        if workflow.info().workflow_id != expected:
            message = f"name, run: this campaign must be started with --workflow-id {expected}"
            raise ApplicationError(message, type="InvalidSpec", non_retryable=True)
        reports: list[BurstReport] = []
        for index in range(spec.bursts):
            burst = spec.nth(index)
            workflow.set_current_details(f"burst {index + 1} of {spec.bursts}: {burst.name}")
            reports.append(
                await workflow.execute_child_workflow(
                    Burst.run,
                    burst,
                    id=ids.burst_id(spec.run, burst.name),
                    static_summary=f"{index + 1} of {spec.bursts}",
                )
            )
        return CampaignReport(run=spec.run, campaign=spec.name, bursts=tuple(reports))

"""How busy the pipeline is, from the records: what the `throughput` policy looks at between updates."""

import asyncio
import time

from sqlalchemy import Engine
from temporalio import activity

from infra.records.occupancy import busy_shares
from workflows.messages.control import MeasurePipeline, PipelineSample


class TelemetryActivities:
    """Runs on the control queue; reads only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @activity.defn(name="measure_pipeline")
    async def measure_pipeline(self, request: MeasurePipeline) -> PipelineSample:
        """The share of the time since `since` in which each training cell had a micro-step in work."""
        now = time.time()
        training = await asyncio.to_thread(busy_shares, self._engine, request.since, now)
        return PipelineSample(at=now, training={cell: training.get(cell, 0.0) for cell in request.cells})

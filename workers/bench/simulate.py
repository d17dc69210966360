"""How long the simulator takes: 48 steps on 192 nodes, every policy, fixed splits searched."""

import time

from infra.simulator.compare import compare
from infra.simulator.paper import LARGE, load_fit, scenario_of
from infra.simulator.scenario import DEFAULT_VARIANTS, Scenario
from workflows.messages.base import Message


class SimulateReport(Message):
    """`seconds`: wall time of the comparison; `processor_seconds`: what this process used of it."""

    nodes: int
    cells: int
    steps: int
    executions: int
    seconds: float
    processor_seconds: float
    hours: dict[str, float]


def measure(cells: int) -> SimulateReport:
    """Time one comparison of the published 192-node setting, the pool cut into `cells`."""
    fit, _ = load_fit()
    told = scenario_of(fit, LARGE, 0)
    values = told.model_dump() | {"cells": cells, "split": 0, "variants": [v.model_dump() for v in DEFAULT_VARIANTS]}
    scenario = Scenario.model_validate(values)
    start, used = time.perf_counter(), time.process_time()
    results = compare(scenario)
    return SimulateReport(
        nodes=scenario.nodes,
        cells=cells,
        steps=scenario.steps,
        executions=results[0].outcome.executions,
        seconds=round(time.perf_counter() - start, 2),
        processor_seconds=round(time.process_time() - used, 2),
        hours={result.variant.label: round(result.outcome.hours, 2) for result in results},
    )

"""The rounds of `gyre bench pipeline`, as the first stage and as the other one live through them, in step.

Each round has the open-ended pipeline, Megatron's schedule with its batched exchange and the same with separate sends,
on the same stages and micro-steps, one after the other in turn. Run as a module it is the other stage.
"""

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from infra.weights.folder import load_weights
from workers.bench.pipeline.stock import SETTINGS, micro_steps, run_stock
from workers.cell.training.backend import StageGroups
from workers.cell.training.pipeline.children import StageProcesses
from workers.cell.training.pipeline.front import Pipeline
from workers.cell.training.pipeline.launch import join
from workers.cell.training.pipeline.orders import Frames, Order, Report
from workers.cell.training.pipeline.process import main
from workers.cell.training.pipeline.schedule import Usage
from workers.cell.training.pipeline.stage import Stage, StageServer
from workers.cell.training.weights_state import HeldWeights
from workflows.messages.errors import ActorUnavailable, InvalidInput

PLAN_VARIABLE = "GYRE_BENCH_PIPELINE"
WAYS = ("open_ended", "megatron_batched", "megatron_separate")
Timed = tuple[float, list[Usage]]
LEAST_UTILISATION, MOST_SECONDS = 0.95, 1.05
"""Of the open-ended pipeline, relative to Megatron's faster way."""


def measure(folder: Path, *, stages: int, steps: int, tokens: int, rounds: int, threads: int) -> dict[str, Any]:
    """Run the rounds; see `summary` for what comes out."""
    os.environ[PLAN_VARIABLE] = json.dumps({"steps": steps, "tokens": tokens, "rounds": rounds + 1})
    processes = StageProcesses(folder, stages, threads, module="workers.bench.pipeline.rounds")
    pipeline, groups = join(processes)
    if groups is None:
        raise InvalidInput("one stage is no pipeline", field="stages")
    others = pipeline.others.frames
    pipeline.whole.load_hf(load_weights(folder))
    work = micro_steps(steps, tokens, pipeline.whole.arch.vocab_size)
    times: dict[str, list[Timed]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        pipeline.hold(HeldWeights(number, "bench"))
        pipeline.allocate()
        pipeline.usage()
        dist.barrier(groups.forward)
        started = time.perf_counter()
        for step in work:
            pipeline.feed(step, SETTINGS, lambda _: None)
        pipeline.drain()
        found = [(time.perf_counter() - started, pipeline.usage())]
        for frames in others:
            frames.send(Order(op="end"))
        for batched in (True, False):
            dist.barrier(groups.forward)
            started = time.perf_counter()
            own = run_stock(pipeline.stage, groups, work, batched=batched)
            elapsed = time.perf_counter() - started
            found.append((elapsed, [own, *(_usage(frames) for frames in others)]))
        if number:  # the first round warms up
            for way, one in zip(WAYS, found, strict=True):
                times[way].append(one)
    processes.end()
    _close(pipeline, groups)
    return summary(times, stages) | {
        "stages": stages,
        "micro_steps": steps,
        "tokens": tokens,
        "rounds": rounds,
        "threads_per_stage": threads,
        "parameters": pipeline.whole.arch.parameters,
    }


def summary(times: dict[str, list[Timed]], stages: int) -> dict[str, Any]:
    """`relative_utilisation`: utilisation of the open-ended pipeline over that of the faster of Megatron's two ways,
    median over rounds; a utilisation is the time stages computed over stages x time. `idle_in_flow`: the part of the
    time between a stage's first and last forward pass in which it did not compute. `met`: within 5% of Megatron in
    utilisation and in time, for a pipeline whose passes take longer is busy too."""
    ways = {
        way: {
            "seconds": round(statistics.median(seconds for seconds, _ in rounds), 3),
            "utilisation": round(statistics.median(utilisation(one, stages) for one in rounds), 3),
            "idle_in_flow": [
                round(statistics.median(idle_in_flow(usages[stage]) for _, usages in rounds), 3)
                for stage in range(stages)
            ],
        }
        for way, rounds in times.items()
    }
    best = min(WAYS[1:], key=lambda way: ways[way]["seconds"])
    pairs = list(zip(times["open_ended"], times[best], strict=True))
    busy = statistics.median(utilisation(ours, stages) / utilisation(theirs, stages) for ours, theirs in pairs)
    seconds = statistics.median(ours[0] / theirs[0] for ours, theirs in pairs)
    return {
        "megatron": best,
        "relative_utilisation": round(busy, 3),
        "relative_seconds": round(seconds, 3),
        "bar": f"relative_utilisation >= {LEAST_UTILISATION:g} and relative_seconds <= {MOST_SECONDS:g}",
        "met": busy >= LEAST_UTILISATION and seconds <= MOST_SECONDS,
        "relative_seconds_of_rounds": [round(ours[0] / theirs[0], 3) for ours, theirs in pairs],
        **ways,
    }


def utilisation(one: Timed, stages: int) -> float:
    return sum(usage.busy_seconds for usage in one[1]) / (stages * one[0])


def idle_in_flow(usage: Usage) -> float:
    forwards = [index for index, (what, _, _) in enumerate(usage.passes) if what.startswith("F")]
    flow = list(usage.passes)[forwards[0] : forwards[-1] + 1]
    whole = flow[-1][2] - flow[0][1]
    return 1 - sum(ended - started for _, started, ended in flow) / whole


def _usage(frames: Frames) -> Usage:
    report, _ = frames.receive()
    if not isinstance(report, Report):
        raise ActorUnavailable(f"a stage answered {report!r}")
    return Usage(report.busy_seconds, report.waiting_seconds, type(Usage().passes)(report.passes))


def _close(pipeline: Pipeline, groups: StageGroups) -> None:
    pipeline.close()
    groups.leave()


def other_stage(stage: Stage, frames: Frames, groups: StageGroups) -> None:
    """The other side of `measure`."""
    plan = json.loads(os.environ[PLAN_VARIABLE])
    work = micro_steps(plan["steps"], plan["tokens"], stage.model.arch.vocab_size)
    server = StageServer(stage, frames)
    for _ in range(plan["rounds"]):
        for _ in ("weights", "allocate", "usage"):
            order, data = frames.receive()
            if not isinstance(order, Order):
                raise ActorUnavailable(f"the first stage says {order!r}")
            server.obey(order, data)
        dist.barrier(groups.forward)
        server.serve()
        for batched in (True, False):
            dist.barrier(groups.forward)
            usage = run_stock(stage, groups, work, batched=batched)
            frames.send(
                Report(
                    op="usage",
                    busy_seconds=usage.busy_seconds,
                    waiting_seconds=usage.waiting_seconds,
                    passes=tuple(usage.passes),
                )
            )


if __name__ == "__main__":
    main(other_stage)

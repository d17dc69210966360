"""Megatron's own fixed-count 1F1B over the very stages, links and micro-steps of the open-ended pipeline."""

import contextlib
import copy
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from megatron.core.pipeline_parallel import schedules
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from torch import Tensor

from infra.micro_steps import PackedMicroStep
from workers.bench.tree import Shape, as_paths
from workers.cell.training.backend import StageGroups
from workers.cell.training.loss import micro_step_loss
from workers.cell.training.model import PolicyModel
from workers.cell.training.pipeline.schedule import Usage
from workers.cell.training.pipeline.stage import Stage
from workflows.messages.loss import LossSettings

SETTINGS = LossSettings(log_entropy=False)


def micro_steps(count: int, tokens: int, vocabulary: int) -> list[PackedMicroStep]:
    """`count` paths of `tokens` places, half of them targets; the same in every process."""
    shape = Shape(prefix=tokens // 2, leaves=1, answer=tokens - tokens // 2)
    return [as_paths(shape, seed, tokens, vocabulary)[0] for seed in range(count)]


def run_stock(stage: Stage, groups: StageGroups, steps: Sequence[PackedMicroStep], *, batched: bool) -> Usage:
    """One pass of all `steps`; gradients add up as in the open-ended pipeline. `batched`: Megatron's default."""
    model, usage = stage.model, Usage()
    config: Any = copy.copy(model.config)
    config.batch_p2p_comm = batched
    tokens = steps[0].tokens
    pairs = iter([(step, stage.tensors(step)) for step in steps])

    def step_through(data: Iterator, stage_model: PolicyModel):
        step, tensors = next(data)

        def loss(logits: Tensor):
            return micro_step_loss(logits, step, SETTINGS).total, torch.zeros((), dtype=torch.int), {}

        return stage_model.stage_output(tensors), loss

    with _as_on_this_machine(), _timed(usage):
        schedules.forward_backward_pipelining_without_interleaving(
            forward_step_func=step_through,
            data_iterator=pairs,
            model=[model],
            num_microbatches=len(steps),
            seq_length=tokens,
            micro_batch_size=1,
            forward_only=False,
            p2p_communicator=P2PCommunicator(groups.forward, config),
            pg_collection=model.pg_collection,
        )
    return usage


@contextlib.contextmanager
def _timed(usage: Usage) -> Iterator[None]:
    """Note when each forward and backward step begins and ends."""
    kept = schedules.forward_step, schedules.backward_step
    counts = {"F": 0, "B": 0}

    def timed(kind: str, call: Any):
        def run(*arguments: Any, **named: Any):
            started = time.perf_counter()
            result = call(*arguments, **named)
            now = time.perf_counter()
            usage.busy_seconds += now - started
            usage.passes.append((f"{kind}{counts[kind]}", started, now))
            counts[kind] += 1
            return result

        return run

    schedules.forward_step, schedules.backward_step = timed("F", kept[0]), timed("B", kept[1])
    try:
        yield
    finally:
        schedules.forward_step, schedules.backward_step = kept


class _HostTorch:
    """`torch` for one module: what it makes on "cuda" is made on the host."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        if name != "zeros":
            return found
        return lambda *sizes, **named: found(*sizes, **named | {"device": "cpu"})


@contextlib.contextmanager
def _as_on_this_machine() -> Iterator[None]:
    """Without CUDA: the schedule's literal device, and the synchronisation after a batched exchange."""
    if torch.cuda.is_available():
        yield
        return
    kept = schedules.torch, torch.cuda.synchronize
    schedules.torch, torch.cuda.synchronize = _HostTorch(), lambda *_: None  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        schedules.torch, torch.cuda.synchronize = kept  # pyright: ignore[reportAttributeAccessIssue]

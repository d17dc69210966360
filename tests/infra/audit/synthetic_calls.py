"""Executions of the synthetic run, with the model calls each of them made."""

import random
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from infra.records import schema
from infra.records.tokens import pack_ids, pack_logprobs
from tests.infra.audit.recording import DISPATCHED_AT, GROUPS, MEMBERS, REWARDS, RUN, SyntheticRun, execution_id


@dataclass
class SyntheticCall:
    """One call as the builder knows it: prompt and output ids, log-probs."""

    call: str
    prompt: list[int]
    output: list[int]
    logprobs: list[float]
    version: int


def add_execution(run: SyntheticRun, burst: str, group: int, member: int, start: float) -> dict[str, SyntheticCall]:
    number = group * MEMBERS + member
    execution, reward = execution_id(burst, group, member), REWARDS[burst][group][member]
    prepared = start + 10 + number / 10
    run.add(
        schema.executions,
        {
            "execution": execution,
            "run": RUN,
            "burst": burst,
            "group_index": group,
            "member": member,
            "purpose": "train",
            "task": "made-up",
            "harness": "none",
            "client": "thin",
            "seed": number,
            "dispatch_version": DISPATCHED_AT[burst],
            "sampling": {"temperature": 1.0, "max_call_tokens": 8},
            "call_limit": 10,
            "token_sha256": "0" * 64,
            "attempt": 1,
            "state": "closed",
            "workspace": "none",
            "prepared_at": prepared,
            "first_call_at": prepared + 1,
            "ended_at": start + 19.9 + number,
            "closed_at": start + 20 + number,
            "end_reason": "submitted",
            "outcome": "evaluator_failed" if reward is None else "scored",
            "reward": reward,
            "model_calls": 3,
        },
    )
    draw, version = random.Random(execution), DISPATCHED_AT[burst]

    def ids(count: int) -> list[int]:
        return [draw.randrange(10, 4000) for _ in range(count)]

    first = _call(run, execution, 0, None, ids(6), ids(4), version, prepared + 1, number % 3)
    moved = number == GROUPS * MEMBERS - 1
    second = _call(
        run, execution, 1, first, ids(2), ids(3), version, start + 29 if moved else prepared + 2, number % 3, moved
    )
    fork = _call(run, execution, 2, first, ids(3), ids(2), version, prepared + 3, number % 3)
    return {"first": first, "second": second, "fork": fork}


def _call(
    run: SyntheticRun,
    execution: str,
    sequence: int,
    parent: SyntheticCall | None,
    tail: list[int],
    output: list[int],
    version: int,
    started: float,
    cell: int,
    moved: bool = False,
) -> SyntheticCall:
    draw = random.Random(f"{execution} {sequence}")
    shared = [] if parent is None else parent.prompt + parent.output
    call = UUID(int=draw.getrandbits(128)).hex
    logprobs = np.array([-draw.random() * 3 for _ in output], dtype=np.float32).tolist()
    run.add(
        schema.calls,
        {
            "call": call,
            "execution": execution,
            "attempt": 1,
            "sequence": sequence,
            "dialect": "chat",
            "role": "main",
            "state": "finished",
            "started_at": started,
            "ended_at": started + 0.5,
            "parent_call": parent.call if parent else None,
            "shared_tokens": len(shared),
            "input_tail": pack_ids(tail),
            "prompt_tokens": len(shared) + len(tail),
            "output_ids": pack_ids(output),
            "output_logprobs": pack_logprobs(logprobs),
            "version_spans": [[version, len(output)]],
            "output_tokens": len(output),
            "finish": "stop",
            "imposed": {"temperature": 1.0, "max_call_tokens": 8, "budget": 8},
        },
    )
    parts = [(0, len(output) - 1, "abort"), (2, 1, "stop")] if moved else [(cell, len(output), "stop")]
    produced = 0
    for number, (home, tokens, ended) in enumerate(parts):
        run.add(
            schema.segments,
            {
                "call": call,
                "segment": number,
                "rid": UUID(int=draw.getrandbits(128)).hex,
                "engine": f"cell-{home}",
                "cell": home,
                "boot_epoch": 1,
                "version": version,
                "started_at": started + 1.4 * number,
                "ended_at": started + 1.4 * number + 0.3,
                "prompt_tokens": len(shared) + len(tail) + produced,
                "kv_waited": False,
                "output_tokens": tokens,
                "ended": ended,
            },
        )
        produced += tokens
    return SyntheticCall(call, shared + tail, output, logprobs, version)

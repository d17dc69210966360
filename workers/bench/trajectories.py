"""How fast trajectories are made of records: rows read, tree, selection, harvest; tokens a second, bytes a token.

The executions are made up, of the shape of long agent runs: turns of some thousand tokens, contexts that fill and are
compacted, sub-agents, requests sampled again, edited histories. Tokens are counted as what the calls add, each once;
what they were conditioned on is many times that (`conditioned_tokens`).
"""

import gc
import random
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Engine, insert

from activities.trajectories.artifact import TrajectoryTree
from activities.trajectories.calls import Call, load_calls
from activities.trajectories.growth import GrownTree, grow
from activities.trajectories.harvest import harvest
from activities.trajectories.packing import Piece, pack
from infra.micro_steps import PackedMicroStep, Provenance, encode
from infra.records.database import open_database
from infra.records.schema import calls
from infra.records.tokens import pack_ids, pack_logprobs
from workflows.messages.burst import Selection
from workflows.messages.group import PackGroup

VOCABULARY = 150_000
CONTEXT_TOKENS = 128_000
TURN_TOKENS = 1_600
REQUEST = PackGroup(
    run="bench",
    batch="bench/batch/b/0",
    burst="b",
    group=0,
    first_index=0,
    token_budget=CONTEXT_TOKENS,
    temperature=1.0,
    layout="tree",
)
PROVENANCE = Provenance(
    execution="bench",
    task="made-up",
    harness="none",
    outcome="scored",
    reward=1.0,
    oldest_version=0,
    newest_version=1,
    trajectory_sha256="",
)


def made_up(tokens: int, seed: int = 0) -> list[Call]:
    """Calls that together add about `tokens` ids."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    found: list[Call] = []
    lengths: dict[str, int] = {}
    added = 0

    def ask(parent: str | None, role: str, shared: int | None = None) -> str:
        nonlocal added
        name = f"call-{len(found)}"
        length = 0 if parent is None else lengths[parent] if shared is None else shared
        outputs = draw.randint(TURN_TOKENS // 8, TURN_TOKENS // 2)
        tail = numbers.integers(0, VOCABULARY, draw.randint(TURN_TOKENS // 2, TURN_TOKENS), dtype=np.int32)
        output = numbers.integers(0, VOCABULARY, outputs, dtype=np.int32)
        logprobs = -numbers.random(outputs, dtype=np.float32)
        spans = ((0, outputs // 2), (1, outputs - outputs // 2))
        found.append(Call(name, len(found), role, tail, output, logprobs, spans, parent, length))
        lengths[name] = length + len(tail) + outputs
        added += len(tail) + outputs
        return name

    main = ask(None, "main")
    while added < tokens:
        happens = draw.random()
        if lengths[main] > CONTEXT_TOKENS:
            ask(main, "main-summary")
            main = ask(None, "main")
        elif happens < 0.02:
            agent = ask(None, "sub-agent")
            for _ in range(draw.randint(2, 12)):
                agent = ask(agent, "sub-agent")
        elif happens < 0.03:
            main = ask(main, "main", shared=draw.randint(1, lengths[main]))
        else:
            main = ask(main, "main")
    return found


@dataclass(frozen=True)
class TreeCost:
    """One size. `read_seconds`: the rows; `tree_seconds`: building and selection; `harvest_seconds`: what is stored;
    `pack_seconds`: from that to encoded micro-steps, laid out as trees, not part of the total. `flat_tokens`,
    `packed_tokens`: what training computes for the chosen paths, one by one and as packed."""

    tokens: int
    calls: int
    conditioned_tokens: int
    paths: int
    target_tokens: int
    read_seconds: float
    tree_seconds: float
    harvest_seconds: float
    pack_seconds: float
    flat_tokens: int
    packed_tokens: int
    peak_bytes: int

    @property
    def total_seconds(self) -> float:
        return self.read_seconds + self.tree_seconds + self.harvest_seconds

    def figures(self) -> dict[str, Any]:
        total = self.total_seconds
        return {
            "tokens": self.tokens,
            "calls": self.calls,
            "conditioned_tokens": self.conditioned_tokens,
            "paths": self.paths,
            "target_tokens": self.target_tokens,
            "read_seconds": round(self.read_seconds, 4),
            "tree_seconds": round(self.tree_seconds, 4),
            "harvest_seconds": round(self.harvest_seconds, 4),
            "total_seconds": round(total, 4),
            "pack_seconds": round(self.pack_seconds, 4),
            "flat_tokens": self.flat_tokens,
            "packed_tokens": self.packed_tokens,
            "tree_tokens_per_second": round(self.tokens / self.tree_seconds),
            "total_tokens_per_second": round(self.tokens / total),
            "bytes_per_token": round(self.peak_bytes / self.tokens, 1),
        }


def measure(tokens: int, folder: Path, rounds: int) -> TreeCost:
    """The fastest of `rounds`, one thread; memory is measured in a round of its own, from the rows to the result."""
    recorded = made_up(tokens)
    engine = open_database(f"sqlite:///{folder / f'{tokens}.db'}", create=True)
    write(engine, recorded)
    conditioned = sum(call.prompt_tokens for call in recorded)
    size = sum(len(call.tail) + len(call.output) for call in recorded)
    del recorded

    def read() -> list[Call]:
        with engine.connect() as connection:
            return load_calls(connection, "bench")

    def select(found: list[Call]) -> GrownTree:
        return grow("bench", found, seed=1, selection=Selection())

    found = read()
    read_seconds = _fastest(read, rounds)
    tree_seconds = _fastest(lambda: select(found), rounds)
    grown = select(found)
    harvest_seconds = _fastest(lambda: harvest(grown), rounds)
    trajectory = harvest(grown)
    packed = _packed(trajectory)
    cost = TreeCost(
        tokens=size,
        calls=len(found),
        conditioned_tokens=conditioned,
        paths=len(grown.chosen),
        target_tokens=trajectory.target_tokens,
        read_seconds=read_seconds,
        tree_seconds=tree_seconds,
        harvest_seconds=harvest_seconds,
        pack_seconds=_fastest(lambda: [encode(step) for step in _packed(trajectory)], rounds),
        flat_tokens=sum(grown.tree.nodes[path.leaf.node].end for path in grown.chosen),
        packed_tokens=sum(step.tokens for step in packed),
        peak_bytes=_peak(lambda: harvest(select(read()))),
    )
    engine.dispose()
    return cost


def _packed(trajectory: TrajectoryTree) -> list[PackedMicroStep]:
    whole = Piece(trajectory, 1.0, trajectory.target_tokens, PROVENANCE)
    return pack([whole], REQUEST)


def exponent(costs: list[TreeCost]) -> float:
    """Slope of log(total seconds) over log(tokens): 1 is linear."""
    tokens, seconds = (np.log([getattr(cost, name) for cost in costs]) for name in ("tokens", "total_seconds"))
    return float(np.polyfit(tokens, seconds, 1)[0])


def write(engine: Engine, recorded: list[Call]) -> None:
    """Rows as the proxy leaves them."""
    rows = [
        {
            "call": call.call,
            "execution": "bench",
            "attempt": 1,
            "sequence": call.sequence,
            "dialect": "chat",
            "role": call.role,
            "state": call.state,
            "started_at": 0.0,
            "parent_call": call.parent,
            "shared_tokens": call.shared,
            "input_tail": pack_ids(call.tail),
            "prompt_tokens": call.prompt_tokens,
            "output_ids": pack_ids(call.output),
            "output_logprobs": pack_logprobs(call.logprobs),
            "version_spans": [list(span) for span in call.spans],
            "output_tokens": len(call.output),
        }
        for call in recorded
    ]
    with engine.begin() as connection:
        connection.execute(insert(calls), rows)


def _fastest(work: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def _peak(work: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

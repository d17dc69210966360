"""Demonstrations: conversations whose observations come from real commands in a real workspace.

A demonstration follows the right way or the tempting one, each with probability one half and never both, so the
policy that is trained on them passes about half of its tasks and RL has something to find.
"""

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from infra.demo.dialogue import SUBMIT, answer, observation, opening, run_command
from infra.demo.families import Repair
from infra.demo.tasks import repair_of, write_workspace

Conversation = list[dict[str, str]]


def demonstrate(repair: Repair, workspace: Path, *, right: bool) -> Conversation:
    """One conversation, played for real in `workspace` (made here, left as the last command left it)."""
    write_workspace(repair, workspace)
    messages = opening(repair.instruction)
    for command in repair.commands(right=right):
        messages += [answer(command), observation(*run_command(command, workspace))]
    return [*messages, answer(SUBMIT)]


def demonstration(index: int, *, seed: int, scratch: str) -> Conversation:
    """Demonstration `index` of a seed; half of them follow the tempting way."""
    right = random.Random(f"strategy/{seed}/{index}").random() < 0.5
    workspace = Path(tempfile.mkdtemp(prefix="demonstration-", dir=scratch))
    try:
        return demonstrate(repair_of("demonstration", seed, index), workspace, right=right)
    finally:
        shutil.rmtree(workspace)


def demonstrations(count: int, *, seed: int, processes: int = 16) -> Iterator[Conversation]:
    """`count` demonstrations in order of index, played in parallel: their commands mostly wait to be started."""
    memory = "/dev/shm"
    scratch = memory if os.access(memory, os.W_OK) else tempfile.gettempdir()
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(partial(demonstration, seed=seed, scratch=scratch), range(count), chunksize=32)

"""Rollouts of a policy in this process, with real commands: measures the pass rate of a warm start.

The product itself rolls out through SGLang, the proxy and the harness; this is the short way for the warm-start
script, with the same conversation and the same scoring of what is left.
"""

import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch

from infra.demo.dialogue import STEP_LIMIT, command_of, is_submission, observation, opening, run_command
from infra.demo.families import Repair
from infra.demo.rewards import solved
from infra.demo.tasks import write_workspace
from infra.tokenizer import ChatTokenizer

CALL_TOKENS = 96


@dataclass
class Rollout:
    """One execution: `ids` with `targets` (1 where the policy sampled), and what came of it."""

    repair: Repair
    workspace: Path
    ids: list[int]
    targets: list[int]
    turns: int = 0
    done: bool = False
    reward: float = 0.0
    messages: list[dict[str, str]] = field(default_factory=list)


def roll_out(
    model: torch.nn.Module, chat: ChatTokenizer, repairs: Sequence[Repair], *, temperature: float
) -> list[Rollout]:
    """Run every repair once; `temperature` 0 is greedy. Uses torch's global generator."""
    scratch = Path(tempfile.mkdtemp(prefix="rollouts-", dir="/dev/shm"))
    try:
        runs = [_begin(repair, scratch / str(i), chat) for i, repair in enumerate(repairs)]
        with ThreadPoolExecutor(4) as pool:
            for _ in range(STEP_LIMIT):
                live = [run for run in runs if not run.done]
                if not live:
                    break
                answers = _sample(model, chat, [run.ids for run in live], temperature)
                list(pool.map(lambda pair: _step(pair[0], pair[1], chat), zip(live, answers, strict=True)))
        for run in runs:
            run.reward = float(solved(run.repair, run.workspace))
        return runs
    finally:
        shutil.rmtree(scratch)


def _begin(repair: Repair, workspace: Path, chat: ChatTokenizer) -> Rollout:
    write_workspace(repair, workspace)
    messages = opening(repair.instruction)
    ids = chat.render(messages)
    return Rollout(repair, workspace, ids, [0] * len(ids), messages=messages)


def _step(run: Rollout, sampled: list[int], chat: ChatTokenizer) -> None:
    run.ids += sampled
    run.targets += [1] * len(sampled)
    run.turns += 1
    command = command_of(chat.decode(sampled))
    if command is None:
        run.done = True
        return
    returncode, output = run_command(command, run.workspace, seconds=5)
    if is_submission(returncode, output):
        run.done = True
        return
    run.messages.append({"role": "assistant", "content": chat.decode(sampled)})
    new = observation(returncode, output)
    ids = chat.extend(run.ids, run.messages, [new])
    if ids is None:
        raise RuntimeError("the demo's template never rewrites earlier turns")
    run.messages.append(new)
    run.targets += [0] * (len(ids) - len(run.ids))
    run.ids = ids


@torch.no_grad()
def _sample(
    model: torch.nn.Module, chat: ChatTokenizer, prompts: Sequence[list[int]], temperature: float
) -> list[list[int]]:
    """One answer per prompt, its end token included."""
    longest, end = max(map(len, prompts)), chat.end_of_turn_ids[0]
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    output = model.generate(  # pyright: ignore[reportCallIssue]
        input_ids=ids, attention_mask=mask, max_new_tokens=CALL_TOKENS, eos_token_id=end, pad_token_id=0, **how
    )
    rows = output[:, longest:].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


def mean_reward(runs: Sequence[Rollout]) -> float:
    return sum(run.reward for run in runs) / len(runs)

"""Random executions: agents that go on, compact, delegate, retry, edit their history; calls that fail."""

import random

import numpy as np
from hypothesis import strategies as st

from activities.trajectories.calls import Call

ROLES = ("main", "sub-agent", "main-summary", "sub-agent-summary", "side")


def executions(most_calls: int = 9) -> st.SearchStrategy[list[Call]]:
    """Lists of calls in order of arrival. A tiny vocabulary makes accidental agreement common."""
    return st.builds(grow, st.integers(0, 2**32 - 1), st.integers(0, most_calls), st.integers(2, 5))


def grow(seed: int, count: int, vocabulary: int) -> list[Call]:
    draw = random.Random(seed)
    calls: list[Call] = []
    whole: list[list[int]] = []
    prompts: list[list[int]] = []

    def some(least: int, most: int) -> list[int]:
        return [draw.randrange(vocabulary) for _ in range(draw.randint(least, most))]

    for sequence in range(count):
        role, prompt = "main", some(1, 4)
        kind = draw.choice(
            ["go on", "go on", "go on", "root", "sub-agent", "retry", "edit", "summary", "compaction", "side"]
        )
        if whole and kind != "root":
            place = draw.randrange(len(whole))
            role = calls[place].role
            if kind == "go on":
                prompt = whole[place] + some(0, 3)
            elif kind == "retry":
                prompt = prompts[place]
            elif kind == "edit":
                prompt = whole[place][: draw.randint(0, len(whole[place]))] + some(1, 3)
            elif kind == "compaction":
                role, prompt = role.removesuffix("-summary").replace("side", "main"), prompts[place][:1] + some(1, 3)
            elif kind == "sub-agent":
                role, prompt = "sub-agent", some(1, 3)
            elif kind == "summary":
                role, prompt = role.removesuffix("-summary").replace("side", "main") + "-summary", whole[place] + [0]
            else:
                role, prompt = "side", draw.choice([some(1, 3), whole[place] + some(1, 2)])
        state = draw.choice(["finished"] * 8 + ["failed", "undelivered"])
        output = [] if state == "failed" else some(0 if draw.random() < 0.1 else 1, 4)
        parent, shared = _shared(draw, whole, prompt)
        prompts.append(prompt)
        whole.append(prompt + output)
        calls.append(
            Call(
                call=f"c{sequence}",
                sequence=sequence,
                role=role,
                tail=np.array(prompt[shared:], np.int32),
                output=np.array(output, np.int32),
                logprobs=np.array([-draw.random() for _ in output], np.float32),
                spans=_spans(draw, len(output)),
                parent=parent,
                shared=shared,
                state=state,
            )
        )
    return calls


def _shared(draw: random.Random, whole: list[list[int]], prompt: list[int]) -> tuple[str | None, int]:
    """What a recorder may say of a prompt: it shares some ids with some earlier call, all that it could or fewer."""
    if not whole or draw.random() < 0.2:
        return None, 0
    place = draw.randrange(len(whole))
    same = 0
    for one, other in zip(whole[place], prompt, strict=False):
        if one != other:
            break
        same += 1
    shared = same if draw.random() < 0.7 else draw.randint(0, same)
    return (f"c{place}", shared) if shared else (None, 0)


def _spans(draw: random.Random, length: int) -> tuple[tuple[int, int], ...]:
    if length > 1 and draw.random() < 0.4:
        first = draw.randint(1, length - 1)
        return (3, first), (draw.randint(4, 5), length - first)
    return ((draw.randint(1, 3), length),) if length else ()

"""What training must see of an execution, by brute force: every path expanded, nothing shared, plain tuples.

Written from docs and not from the code: it knows calls, the declared rules of targets and of the draw, nothing else.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from activities.trajectories.calls import Call

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Expanded:
    """One call with all its ids."""

    call: Call
    prompt: Ids
    ids: Ids


@dataclass(frozen=True)
class Target:
    call: str
    logprob: float
    version: int


@dataclass(frozen=True)
class OraclePath:
    """A chosen path: last call, all its ids, and the targets it trains by their exact prefix."""

    leaf: str
    role: str
    ids: Ids
    targets: dict[Ids, Target]


def expand(calls: Sequence[Call]) -> list[Expanded]:
    found: dict[str, Expanded] = {}
    for call in sorted(calls, key=lambda one: one.sequence):
        shared = found[call.parent].ids[: call.shared] if call.parent is not None else ()
        prompt = (*shared, *(int(one) for one in call.tail))
        found[call.call] = Expanded(call, prompt, (*prompt, *(int(one) for one in call.output)))
    return list(found.values())


def is_trained(call: Expanded, priority: Sequence[str]) -> bool:
    delivered = call.call.state == "finished" and len(call.prompt) > 0 and len(call.call.output) > 0
    return delivered and call.call.role in priority


def all_targets(calls: Sequence[Expanded], priority: Sequence[str]) -> dict[Ids, Target]:
    """Exact prefix up to and with a generated token -> who generated it first."""
    found: dict[Ids, Target] = {}
    for one in calls:
        if not is_trained(one, priority):
            continue
        versions = [version for version, count in one.call.spans for _ in range(count)]
        for offset, version in enumerate(versions):
            prefix = one.ids[: len(one.prompt) + offset + 1]
            found.setdefault(prefix, Target(one.call.call, float(one.call.logprobs[offset]), version))
    return found


def candidate_paths(calls: Sequence[Expanded], priority: Sequence[str]) -> list[Expanded]:
    """Trained calls that no trained call goes on from; of several with the very same ids the first."""
    trained = [one for one in calls if is_trained(one, priority)]
    found: list[Expanded] = []
    for one in trained:
        longer = any(len(other.ids) > len(one.ids) and other.ids[: len(one.ids)] == one.ids for other in trained)
        if not longer and all(other.ids != one.ids for other in found):
            found.append(one)
    return found


def select(calls: Sequence[Call], seed: str, limit: int | None, priority: Sequence[str]) -> list[OraclePath]:
    everything = expand(calls)
    targets = all_targets(everything, priority)
    paths = candidate_paths(everything, priority)
    draw, used = random.Random(seed), set[Ids]()
    chosen: list[OraclePath] = []
    while limit is None or len(chosen) < limit:
        unused = {
            place: [p for p in _prefixes(path.ids) if p in targets and p not in used]
            for place, path in enumerate(paths)
        }
        ranks = [priority.index(paths[place].call.role) for place, left in unused.items() if left]
        if not ranks:
            break
        of_class = [p for p, left in unused.items() if left and priority.index(paths[p].call.role) == min(ranks)]
        ticket = int(draw.random() * sum(len(unused[place]) for place in of_class))
        for place in of_class:
            if ticket < len(unused[place]):
                break
            ticket -= len(unused[place])
        path = paths[place]
        mine = {prefix: targets[prefix] for prefix in unused[place]}
        chosen.append(OraclePath(path.call.call, path.call.role, path.ids, mine))
        used.update(_prefixes(path.ids))
    return chosen


def unique_prefixes(calls: Sequence[Expanded]) -> set[Ids]:
    return {prefix for one in calls for prefix in _prefixes(one.ids)}


def _prefixes(ids: Ids) -> list[Ids]:
    return [ids[: place + 1] for place in range(len(ids))]

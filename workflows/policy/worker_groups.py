"""The one interface of worker groups: how each component gives up and takes on units, and which steps do it live.

A row for each component. Plans are worded from it (`workflows.policy.migration`), the live verbs are performed by its
steps in their order, and a transition tells by the same row which verbs it has performed. A new component is a new row,
and the activities that its row names.

`move_state` accompanies a migration and is never all of it: the KV of live requests goes to where they go on; a cell
that joins a batch pulls the core's weights, and its gradients are pulled from it. `reboot` is the fallback
(docs/decisions/0101-one-interface-and-the-reboot.md): one boot of a cell holds both roles, so it reboots both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workflows.policy.component import CELLS, SLOTS, Component, Strategy, Verb


@dataclass(frozen=True)
class WorkerGroup:
    """One row. `strategy`: how it normally gives and takes; `steps`: each verb by names of `workflows.steps`."""

    resource: str
    strategy: Strategy
    steps: Mapping[Verb, tuple[str, ...]]


_RESIZES: Mapping[Verb, tuple[str, ...]] = {Verb.RESIZE: ("share_slots",)}
_REBOOT = ("reboot_cell",)

WORKER_GROUPS: Mapping[Component, WorkerGroup] = {
    Component.ROLLOUT: WorkerGroup(
        CELLS,
        Strategy.SUSPEND,
        {
            Verb.MOVE_STATE: ("retain_kv", "pull_kv", "release_kv"),
            Verb.SUSPEND: ("release_rollout",),
            Verb.RESUME: ("resume_rollout", "load_weights", "verify_engine"),
            Verb.REBOOT: _REBOOT,
        },
    ),
    Component.HARNESS: WorkerGroup(SLOTS, Strategy.RESIZE, _RESIZES),
    Component.EVALUATOR: WorkerGroup(SLOTS, Strategy.RESIZE, _RESIZES),
    Component.TRAINING: WorkerGroup(
        CELLS,
        Strategy.SUSPEND,
        {
            Verb.MOVE_STATE: ("join_batch", "combine_update"),
            Verb.SUSPEND: ("leave_stream", "release_training"),
            Verb.RESUME: ("restore_training",),
            Verb.REBOOT: _REBOOT,
        },
    ),
}


def performed(done: Sequence[str]) -> tuple[str, ...]:
    """The verbs (`rollout suspend`) all of whose steps are among `done`, in the order in which they were complete.

    `done`: names of the steps that succeeded, in order.
    """
    last = {name: index for index, name in enumerate(done)}
    found = [
        (max(last[name] for name in steps), f"{component} {verb}")
        for component, group in WORKER_GROUPS.items()
        for verb, steps in group.steps.items()
        if all(name in last for name in steps)
    ]
    return tuple(verb for _, verb in sorted(found, key=lambda one: one[0]))

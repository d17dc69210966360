"""What the paths of an execution should have trained, by the audit's own reading of the calls (invariant 5).

A token is due on a path when a delivered call of a trained role generated it after exactly the ids that lead to it. It
is due once: on whichever of the execution's paths.
"""

import numpy as np

from infra.audit.histories import CallHistory

TRAINED_ROLES = frozenset({"main", "sub-agent", "main-summary", "sub-agent-summary"})


def due_on(history: CallHistory, ids: np.ndarray) -> np.ndarray:
    """bool [n]: which of a path's ids are due."""
    due = np.zeros(len(ids), dtype=bool)
    for name, call in history.calls.items():
        first = call.prompt_tokens
        if (
            call.state != "finished"
            or call.role not in TRAINED_ROLES
            or not len(call.output)
            or not 0 < first < len(ids)
        ):
            continue
        if ids[first] != call.output[0]:
            continue
        full = history.full_ids(name)
        if full is None:
            continue
        length = min(len(full), len(ids))
        differ = np.flatnonzero(full[:length] != ids[:length])
        due[first : int(differ[0]) if len(differ) else length] = True
    return due

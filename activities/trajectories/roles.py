"""Which calls may be trained, and which go first.

Roles are written by the recorder, as the harness' adapter tells them apart. Side calls (titles, probes, warm-ups) and
roles nobody knows are recorded, never trained. A path has the role of its last call: a context that ends in a summary
of itself is a summary path, one that ends in an agent's turn is that agent's.
"""

from collections.abc import Sequence

ROLE_PRIORITY = ("main", "sub-agent", "main-summary", "sub-agent-summary")
"""The setting `role_priority`: highest class first."""


def rank(role: str, priority: Sequence[str] = ROLE_PRIORITY) -> int | None:
    """Place of `role` in the order, 0 first; None: never trained."""
    return priority.index(role) if role in priority else None

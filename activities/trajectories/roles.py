"""Which calls may be trained, and which go first.

Roles are written by the recorder. Side calls (titles, probes, warm-ups) and roles nobody knows are recorded, never
trained.
"""

from collections.abc import Sequence

ROLE_PRIORITY = ("main", "sub-agent", "main-summary", "sub-agent-summary")
"""The setting `role_priority`: highest class first."""


def rank(role: str, priority: Sequence[str] = ROLE_PRIORITY) -> int | None:
    """Place of `role` in the order, 0 first; None: never trained."""
    return priority.index(role) if role in priority else None

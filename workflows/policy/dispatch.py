"""How much to dispatch at a boundary and how much to launch now."""


def top_up(quota: int, outstanding: int) -> int:
    """Groups to dispatch: outstanding (queued, running or ready, not yet consumed) is topped *up to* the quota."""
    return max(0, quota - outstanding)


def launchable(capacity: int, running: int, queued: int) -> int:
    """Executions to launch now: only while running < C_R."""
    return max(0, min(capacity - running, queued))

"""Rows of executions for tests of what is told about them."""

from typing import Any


def execution_row(member: int, **changes: Any) -> dict[str, Any]:
    """A closed, scored execution of burst `first`, changed."""
    row: dict[str, Any] = {
        "execution": f"r/execution/first/0000/{member:02d}",
        "run": "r",
        "burst": "first",
        "group_index": 0,
        "member": member,
        "purpose": "train",
        "task": "/somewhere/tasks/repair",
        "harness": "made-up",
        "client": "thin",
        "seed": 7,
        "dispatch_version": 0,
        "sampling": {},
        "call_limit": 10,
        "token_sha256": "",
        "attempt": 1,
        "state": "closed",
        "workspace": "",
        "prepared_at": 1.0,
        "first_call_at": None,
        "closed_at": 2.0,
        "end_reason": "submitted",
        "outcome": "scored",
        "reward": 0.0,
        "model_calls": 0,
        "detail": "",
    }
    return row | changes

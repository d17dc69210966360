"""Workflow ids: the table of contents of the web UI. Every id carries its run, so two runs share a Temporal.

<run>/scheduler                      <run>/cell/2                <run>/transition/cell-2/<lease>
<run>/burst/<name>                   <run>/campaign/<name>       <run>/batch/<burst>/3
<run>/execution/<burst>/0007/02      (group 7, member 2)
"""

import re

SLUG = re.compile(r"^[a-z0-9][a-z0-9-]{0,39}$")
"""What a run, burst or campaign may be called."""

WORKFLOW_QUEUE = "gyre"
"""The one task queue of workflows; activities use queues that carry the run."""


def scheduler_id(run: str) -> str:
    return f"{run}/scheduler"


def cell_workflow_id(run: str, cell: int) -> str:
    return f"{run}/cell/{cell}"


def transition_id(run: str, cell: int, number: int) -> str:
    return f"{run}/transition/cell-{cell}/{number:06d}"


def burst_id(run: str, burst: str) -> str:
    return f"{run}/burst/{burst}"


def campaign_id(run: str, campaign: str) -> str:
    return f"{run}/campaign/{campaign}"


def batch_id(run: str, burst: str, step: int) -> str:
    return f"{run}/batch/{burst}/{step}"


def group_id(burst: str, group: int) -> str:
    return f"{burst}/{group:04d}"


def execution_id(run: str, burst: str, group: int, member: int) -> str:
    return f"{run}/execution/{group_id(burst, group)}/{member:02d}"


def engine_id(cell: int) -> str:
    return f"cell-{cell}"


def control_queue(run: str) -> str:
    """Light activities of the control worker."""
    return f"{run}-control"


def harness_queue(run: str) -> str:
    """Workspaces, evaluation, processing."""
    return f"{run}-harness"


def watch_queue(run: str) -> str:
    """Hours-long harness watchers, on a queue of their own."""
    return f"{run}-harness-watch"


def cell_queue(run: str, cell: int, boot_epoch: int) -> str:
    """One boot of one cell worker; never retried elsewhere."""
    return f"{run}-cell-{cell}-{boot_epoch}"


def stream_queue(batch: str) -> str:
    """The micro-steps of one batch; whichever training cell has room claims."""
    return f"{batch}/stream"

"""The command that a person types to go on with a blocked step.

Where Temporal listens is known to the process that hosts the workflows, which sets it once at its start. It is shown
in the web UI, never decided upon, so it takes no part in replay and may differ from one worker to the next.
"""

PLAIN = "temporal workflow update execute --workflow-id {workflow_id} --name resolve_step --input '\"retry\"'"
"""Without an address: for the Temporal that the person's own environment names."""

_template = PLAIN


def show_resume_command(template: str) -> None:
    """Show this command from now on; ``{workflow_id}`` stands for the workflow that is blocked."""
    global _template
    _template = template


def resume_command(workflow_id: str) -> str:
    return _template.replace("{workflow_id}", workflow_id)

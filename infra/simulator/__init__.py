"""What the scheduling policies would do: the live decision functions over simulated cells and executions.

The simulator and the workflows are the only importers of `workflows.policy`.
"""

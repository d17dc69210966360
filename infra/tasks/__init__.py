"""Tasks in the Harbor layout: one folder a task, and sets of them."""

from infra.tasks.sampling import positions
from infra.tasks.task import Task, load_task
from infra.tasks.task_set import TaskSet

__all__ = ["Task", "TaskSet", "load_task", "positions"]

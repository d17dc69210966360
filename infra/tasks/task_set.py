"""A folder of tasks: `train/` and `heldout/`, or one flat folder of tasks that are all for training."""

from pathlib import Path

from infra.tasks.sampling import positions
from workflows.messages.errors import InvalidSpec

SPLITS = ("train", "heldout")


class TaskSet:
    """The tasks of a set, by split. Only names are read here: a task is checked when it is loaded."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InvalidSpec(f"no such folder of tasks: {folder}", field="tasks")
        self.folder = folder.absolute()
        self.flat = not any((folder / split).is_dir() for split in SPLITS)

    def tasks(self, split: str) -> tuple[Path, ...]:
        """Task folders of a split, sorted by name. Raises InvalidSpec for a split that is empty or not there."""
        if split not in SPLITS:
            raise InvalidSpec(f"expected one of {SPLITS}, got {split!r}", field="split")
        if self.flat and split != "train":
            raise InvalidSpec(f"{self.folder} has no heldout/ folder", field="split")
        folder = self.folder if self.flat else self.folder / split
        found = sorted(file.parent for file in folder.glob("*/task.toml"))
        if not found:
            raise InvalidSpec(f"no task in {folder}", field="split")
        return tuple(found)

    def sample(self, split: str, *, seed: int, start: int, count: int) -> tuple[Path, ...]:
        """The tasks at positions `start` to `start + count - 1` of the seeded endless order of this split."""
        tasks = self.tasks(split)
        return tuple(tasks[index] for index in positions(len(tasks), seed=seed, start=start, count=count))

    def first(self, split: str, count: int) -> tuple[Path, ...]:
        """The first `count` tasks by name, again from the start if there are fewer: what an evaluation runs."""
        tasks = self.tasks(split)
        return tuple(tasks[index % len(tasks)] for index in range(count))

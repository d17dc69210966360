"""Drawing the tasks of a burst's groups from a task set."""

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path

from temporalio import activity

from harness_adapters.registry import adapter_named
from infra.settings.run import RunManifest
from infra.tasks import TaskSet, load_task
from workflows.messages.burst import HarnessChoice, Purpose
from workflows.messages.errors import HarnessUnusable, InvalidSpec, InvalidTask
from workflows.messages.tasks import SelectedTasks, SelectTasks

HARNESSES = Path("var") / "harness"
"""Where harnesses are installed, below the checkout."""


def require_harness(choice: HarnessChoice, root: Path) -> None:
    """Raises InvalidSpec naming the field, and what to do, when `choice` cannot run from the harnesses at `root`."""
    adapter = adapter_named(choice.name)
    if not adapter.installed(root):
        raise InvalidSpec(f"{choice.name} is not installed; gyre harness install {choice.name}", field="harness.name")
    try:
        adapter.check(choice, root)
    except HarnessUnusable as error:
        raise InvalidSpec(str(error), field="harness") from error


def require_no_network(tasks: Iterable[Path]) -> None:
    """Raises InvalidSpec naming the first task whose tests want the machine's network. One that cannot be read is no
    matter here: it is refused when it is used."""
    for folder in sorted(set(tasks)):
        with contextlib.suppress(InvalidTask):
            if load_task(folder, container_runtime=True).internet:
                raise InvalidSpec(
                    f"the tests of {folder.name} want the network (allow_internet); "
                    "gradings_may_use_network = true in the fleet file lets them, loopback of this machine too",
                    field="tasks",
                )


class TaskActivities:
    """Runs on the control queue. Task sets are folders, absolute or below the checkout, or names of the fleet file."""

    def __init__(self, manifest: RunManifest) -> None:
        self._manifest = manifest

    @activity.defn(name="select_tasks")
    async def select_tasks(self, request: SelectTasks) -> SelectedTasks:
        """Draw the next tasks; the same request gives the same.

        Raises InvalidSpec for a set that is not there, for a task whose tests want a network they may not have, and
        for a harness that nobody knows, that is not installed or whose settings are wrong: an execution that can never
        run is not dispatched.
        """
        if request.harness is not None:
            await asyncio.to_thread(require_harness, request.harness, Path(self._manifest.root) / HARNESSES)
        return await asyncio.to_thread(self._select, request)

    def _select(self, request: SelectTasks) -> SelectedTasks:
        known = self._manifest.fleet.task_sets
        folder = Path(self._manifest.root) / known.get(request.tasks, request.tasks)
        if request.tasks not in known and not folder.is_dir():
            sets = ", ".join(sorted(known)) or "none"
            raise InvalidSpec(f"no such folder of tasks: {folder}; the task sets are {sets}", field="tasks")
        tasks = TaskSet(folder)
        if request.purpose is Purpose.EVALUATE:
            folders = tasks.first(request.split, request.count)
            position = request.position
        else:
            folders = tasks.sample(request.split, seed=request.seed, start=request.position, count=request.count)
            position = request.position + request.count
        if not self._manifest.fleet.gradings_may_use_network:
            require_no_network(folders)
        return SelectedTasks(tasks=tuple(str(folder) for folder in folders), position=position)

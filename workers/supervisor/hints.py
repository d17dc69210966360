"""The exact lines a person types next, for a running stack."""

import shutil
from pathlib import Path

from infra.settings.run import RunManifest
from infra.temporal.server import temporal_binary
from workflows.messages.ids import WORKFLOW_QUEUE, burst_id, cell_workflow_id, scheduler_id


def next_steps(manifest: RunManifest, *, burst: str = "first") -> list[tuple[str, str]]:
    """(what it does, command) pairs."""
    temporal, where = _temporal(), _address(manifest)
    scheduler, cell = scheduler_id(manifest.run), cell_workflow_id(manifest.run, len(manifest.fleet.cells) - 1)
    gyre = _launcher(manifest)
    missing = [
        (
            "make the demo's tasks, which the example burst names",
            f"{_python(manifest)} -m infra.demo.tasks --out {folder}",
        )
        for name, folder in manifest.fleet.task_sets.items()
        if name == "demo" and not (Path(manifest.root) / folder).exists()
    ]
    return [
        *missing,
        ("write a burst file", f"{gyre} burst example --run {manifest.run} --name {burst} > burst.json"),
        (
            "start it",
            f"{temporal} workflow start{where} --task-queue {WORKFLOW_QUEUE} --type Burst "
            f"--workflow-id {burst_id(manifest.run, burst)} --input-file burst.json",
        ),
        ("what the scheduler sees", f"{temporal} workflow query{where} --workflow-id {scheduler} --type policy_state"),
        ("why cells moved or did not", f"{gyre} ledger --run-dir {_relative(manifest.folder)}"),
        ("go on with a blocked step", resume_command(manifest, cell)),
        (
            "try a pending step again now",
            f"{temporal} activity reset{where} --workflow-id WORKFLOW_ID --activity-id ACTIVITY_ID",
        ),
    ]


def resume_command(manifest: RunManifest, workflow_id: str, *, anywhere: bool = False) -> str:
    """Retries the step that failed for good in a workflow; ``skip`` and ``abort`` are the other answers.

    `anywhere`: for whatever folder it is typed in, not just this one.
    """
    temporal = str(Path(temporal_binary()).absolute()) if anywhere and not shutil.which("temporal") else _temporal()
    return (
        f"{temporal} workflow update execute{_address(manifest)} --workflow-id {workflow_id} "
        "--name resolve_step --input '\"retry\"'"
    )


def _temporal() -> str:
    """By its path where it is not on PATH."""
    return "temporal" if shutil.which("temporal") else str(_relative(Path(temporal_binary())))


def _address(manifest: RunManifest) -> str:
    """Nothing when the user's own environment already says where Temporal is."""
    return f" --address {manifest.temporal_address}" if manifest.fleet.temporal == "dev" else ""


def _launcher(manifest: RunManifest) -> str:
    return "gyre" if shutil.which("gyre") else str(_relative(Path(manifest.root) / ".venv" / "bin" / "gyre"))


def _python(manifest: RunManifest) -> Path:
    return _relative(Path(manifest.root) / ".venv" / "bin" / "python")


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path

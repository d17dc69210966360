"""Which code runs: the checkout's version, and a digest of the workflow code, by which histories are replayed."""

import hashlib
from pathlib import Path

from pydantic import Field

from infra.checkpoints.code_version import code_version
from workflows.messages.base import Message

ROOT = Path(__file__).parents[1]
_DIGITS = 12


class Code(Message):
    """The code of a run, as `run.json` keeps it."""

    version: str = Field(description="commit, with +changes where files differ from it")
    workflows: str = Field(description="digest of the workflow code: the build id of the control worker")

    @classmethod
    def here(cls) -> "Code":
        """That of this checkout, as it lies there now."""
        return cls(version=code_version(), workflows=workflow_code())


def workflow_code(root: Path = ROOT) -> str:
    """12 hexadecimal digits over names and contents of every module below `workflows/`: the same wherever it lies."""
    digest = hashlib.sha256()
    for path in sorted((root / "workflows").rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:_DIGITS]


def what_changed(before: Code | None, now: Code) -> str | None:
    """One line for whoever starts a run's stack again; None when it goes on with the code that recorded it."""
    if before is None or before == now:
        return None
    versions = f"recorded until now by code {_short(before.version)}, goes on with {_short(now.version)}"
    if before.workflows == now.workflows:
        return f"{versions}; the workflow code is the same ({now.workflows})"
    return (
        f"{versions}; the workflow code changed from {before.workflows} to {now.workflows}: workflows that are alive "
        'replay with it (docs/operations.md, "Deploying new code while a run lives")'
    )


def _short(version: str) -> str:
    commit, plus, changes = version.partition("+")
    return commit[:_DIGITS] + plus + changes

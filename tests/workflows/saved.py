"""Saved histories: those of today's code, and those of releases whose runs may still be alive.

Today's are plain files that `record.py` makes anew. A release's are packed once, as one small file, when it is made
(`python -m tests.workflows.record --release VERSION`), and stay as they are: they are what its runs have in Temporal.
Some 40 KB a release; the file goes, with the patches for it (workflows/patches.py), when no run of that release can be
alive.
"""

import base64
import json
import lzma
import re
from pathlib import Path

from temporalio.client import WorkflowHistory

from workflows.batch import BatchState
from workflows.books import SchedulerState
from workflows.cell import CellState
from workflows.messages.carried import Carried

TODAY = Path(__file__).parent / "histories"
RELEASED = Path(__file__).parent / "released"
ENDING = ".json.xz"

CARRIED: dict[str, type[Carried]] = {"Scheduler": SchedulerState, "Cell": CellState, "TrainingBatch": BatchState}
"""Workflow type -> what it starts from and carries over."""


def of_today() -> dict[str, str]:
    """Name -> saved text."""
    return {path.stem: path.read_text() for path in sorted(TODAY.glob("*.json"))}


def of_releases() -> dict[str, dict[str, str]]:
    """Version -> name -> saved text."""
    files = sorted(RELEASED.glob(f"*{ENDING}"))
    return {path.name.removesuffix(ENDING): unpack(path.read_bytes()) for path in files}


def pack(texts: dict[str, str]) -> bytes:
    """Saved texts by name as one file."""
    return lzma.compress(json.dumps({name: json.loads(text) for name, text in texts.items()}).encode())


def unpack(packed: bytes) -> dict[str, str]:
    """What `pack` was given."""
    return {name: json.dumps(saved) for name, saved in json.loads(lzma.decompress(packed)).items()}


def keep(version: str, texts: dict[str, str], folder: Path = RELEASED) -> Path:
    """Keep the histories of a release. Raises FileExistsError if it has some: they never change."""
    path = folder / f"{version}{ENDING}"
    folder.mkdir(exist_ok=True)
    with path.open("xb") as file:
        file.write(pack(texts))
    return path


def history_of(text: str) -> WorkflowHistory:
    """The history in a saved text."""
    saved = json.loads(text)
    return WorkflowHistory.from_json(saved["id"], saved["history"])


def carried_in(text: str) -> list[tuple[type[Carried], bytes]]:
    """The states, as JSON, that the workflow of a saved text began with and carried over."""
    found: list[tuple[type[Carried], bytes]] = []
    for event in json.loads(text)["history"]["events"]:
        for moment in ("workflowExecutionStarted", "workflowExecutionContinuedAsNew"):
            attributes = event.get(f"{moment}EventAttributes")
            if attributes and attributes["workflowType"]["name"] in CARRIED:
                payload = attributes["input"]["payloads"][0]["data"]
                found.append((CARRIED[attributes["workflowType"]["name"]], base64.b64decode(payload)))
    return found


def unkept(changelog: str, kept: set[str]) -> str | None:
    """The newest release in the change log (``## 0.2.0``), if its histories are not kept: its runs may be alive."""
    newest = re.search(r"^## (\d+\.\d+\S*)", changelog, re.MULTILINE)
    return newest[1] if newest and newest[1] not in kept else None

"""Which run a command means: a folder, a run's name, or, without either, the one last started."""

from pathlib import Path

from pydantic import ValidationError

from infra.settings.run import RunManifest, load_run
from workers.supervisor.run_folder import CHECKOUT
from workflows.messages.errors import InvalidInput

RUNS = Path("var") / "runs"


def run_folder(run: str) -> Path:
    """Where the run of this name is kept."""
    return CHECKOUT / RUNS / run


def find_run(which: str | Path | None = None, *, field: str = "--run-dir") -> RunManifest:
    """The manifest of a run. Raises InvalidInput, naming `field`, when there is no such run."""
    if which is None:
        manifests = sorted((CHECKOUT / RUNS).glob("*/run.json"), key=lambda path: path.stat().st_mtime)
        if not manifests:
            raise InvalidInput("no run was started here yet; `gyre up` starts one", field=field)
        return _load(manifests[-1].parent, field)
    for folder in (Path(which), run_folder(str(which)), CHECKOUT / "var" / str(which) / "run"):
        if (folder / "run.json").exists():
            return _load(folder, field)
    raise InvalidInput(
        f"{which} is neither a run folder nor the name of a run in {RUNS} or of var/NAME/run", field=field
    )


def _load(folder: Path, field: str) -> RunManifest:
    try:
        return load_run(folder)
    except ValidationError as error:
        wrong = ".".join(map(str, error.errors()[0]["loc"])) or "no JSON"
        raise InvalidInput(
            f"{folder / 'run.json'} was written by another version of OpenGyre, or is damaged ({wrong}). "
            "Read the run with the version that recorded it",
            field=field,
        ) from error

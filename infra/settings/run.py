"""The run manifest: what a running stack records about itself, and the only thing its processes are told.

Every component starts as ``python -m workers.<name> --run-dir DIR [--cell N]`` and reads ``DIR/run.json``. Ports are
picked once by the supervisor and stay for the life of the run, so a restarted component is found where it was.
Secrets are in ``DIR/secrets.json`` (mode 0600), never in a Temporal payload.
"""

import os
import secrets
from pathlib import Path

from pydantic import Field

from infra.code import Code
from infra.settings.fleet import Fleet
from workflows.messages.base import Message


class RunManifest(Message):
    """`run.json`. URLs without a trailing slash; ports on loopback unless `host` says otherwise."""

    fleet: Fleet
    root: str = Field(description="the checkout")
    run_dir: str
    host: str = "127.0.0.1"
    temporal_address: str
    temporal_ui: str = ""
    temporal_namespace: str = "default"
    proxy_port: int
    proxy_admin_port: int
    engine_ports: tuple[int, ...]
    actor_ports: tuple[int, ...]
    linker_ports: tuple[int, ...]
    metrics_port: int = 0
    gone: tuple[int, ...] = Field(default=(), description="cells that were reclaimed: no process is started for them")
    code: Code | None = Field(default=None, description="the code that its stack was last started with")

    @property
    def run(self) -> str:
        return self.fleet.run

    @property
    def folder(self) -> Path:
        return Path(self.run_dir)

    @property
    def database_url(self) -> str:
        return self.fleet.database_url or f"sqlite:///{self.folder / 'records.db'}"

    @property
    def object_store_url(self) -> str:
        return self.fleet.object_store_url or f"file://{self.folder / 'objects'}"

    @property
    def model_folder(self) -> Path:
        return Path(self.root) / self.fleet.model

    @property
    def workspaces(self) -> Path:
        return self.folder / "workspaces"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def proxy_url(self) -> str:
        return f"http://{self.host}:{self.proxy_port}"

    @property
    def proxy_admin_url(self) -> str:
        return f"http://{self.host}:{self.proxy_admin_port}"

    def engine_url(self, cell: int) -> str:
        return f"http://{self.host}:{self.engine_ports[cell]}"

    def actor_url(self, cell: int) -> str:
        return f"http://{self.host}:{self.actor_ports[cell]}"

    def linker_url(self, cell: int) -> str:
        return f"http://{self.host}:{self.linker_ports[cell]}"

    def published_weights(self, cell: int) -> Path:
        """Where cell `cell` writes weights for its own engine (memory-backed)."""
        return Path(self.fleet.weights_folder) / f"gyre-{self.run}-{os.stat(self.run_dir).st_ino}" / f"cell-{cell}"

    def save(self) -> None:
        """Write `run.json` atomically; nobody else may read it, for `database_url` may hold a password."""
        target = self.folder / "run.json"
        temporary = target.with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        temporary.touch(mode=0o600)
        temporary.write_text(self.model_dump_json(indent=2))
        temporary.replace(target)


class Secrets(Message):
    """Keys of the control routes; made once per run."""

    admin_key: str = Field(
        min_length=20, pattern="^[^-]", description="hex when made here: it is passed on command lines"
    )

    @classmethod
    def of(cls, run_dir: Path, *, create: bool = False) -> "Secrets":
        path = run_dir / "secrets.json"
        if create and not path.exists():
            descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(cls(admin_key=secrets.token_hex(32)).model_dump_json())
        return cls.model_validate_json(path.read_text())


def load_run(run_dir: Path) -> RunManifest:
    """Read `run.json`. Raises FileNotFoundError when no stack was ever started there.

    Its folder is where it was found: a run that was moved, renamed or copied is read there, not where it was recorded.
    """
    recorded = RunManifest.model_validate_json((run_dir / "run.json").read_text())
    return recorded.model_copy(update={"run_dir": str(run_dir.resolve())})

"""A place of its own for a harness: its pins are its business, not ours.

Each is filled from lock files of `requirements/`, once, however many processes ask at the same time, and again only
when a lock file has changed.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from workflows.messages.errors import HarnessUnusable

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
MARK = "installed-from.sha256"
_INSTALL_SECONDS = 1200.0


class Installation(ABC):
    """A folder filled from `locks`."""

    def __init__(self, folder: Path, locks: tuple[Path, ...]) -> None:
        self.folder, self.locks = folder, locks
        self._mark = folder / MARK

    def is_current(self) -> bool:
        """Whether it was installed to the end from the lock files as they stand now."""
        return self._mark.is_file() and self._mark.read_text() == self._fingerprint()

    def install(self) -> None:
        """Make it current. Safe to call from several processes at once. Raises HarnessUnusable."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with open(self.folder.with_name(f"{self.folder.name}.lock"), "w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if self.is_current():
                return
            shutil.rmtree(self.folder, ignore_errors=True)
            self._fill()
            self._mark.write_text(self._fingerprint())

    @abstractmethod
    def _fill(self) -> None:
        """Install into the folder, which does not exist yet. Raises HarnessUnusable."""

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for lock in self.locks:
            digest.update(lock.read_bytes())
        return digest.hexdigest()


class PythonEnvironment(Installation):
    """A virtual environment at `folder`, filled from a lock file that names every package."""

    def __init__(self, folder: Path, lock_file: str) -> None:
        super().__init__(folder, (REQUIREMENTS / lock_file,))

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def is_current(self) -> bool:
        return self.python.exists() and super().is_current()

    def _fill(self) -> None:
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        run_installer([sys.executable, "-m", "venv", str(self.folder)], environment)
        # The lock names every package, so nothing is resolved: quick, and the same everywhere.
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
        run_installer([*pip, "--requirement", str(self.locks[0])], environment)


def run_installer(argv: list[str], environment: Mapping[str, str], cwd: Path | None = None) -> None:
    """Run a package manager to its end. Raises HarnessUnusable with the end of what it said."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_INSTALL_SECONDS, env=dict(environment), cwd=cwd
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HarnessUnusable(f"{argv[:4]} failed: {error}") from error
    if done.returncode:
        raise HarnessUnusable(f"{' '.join(argv[:5])} failed:\n{done.stderr[-1500:]}")

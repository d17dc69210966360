"""A real PostgreSQL server for the tests, from the binaries that a pinned package brings.

One server serves a whole test run; every test has a database of its own in it, copied from a template with the tables.
It listens on a socket in its own folder alone. PostgreSQL refuses to run as root, so then it runs as `nobody`.
"""

import ctypes
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, make_url, text

from infra.records.database import open_database

_START_SECONDS = 200
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "autovacuum": "off",
}
"""Nothing here must outlive the machine; a database of the product's users keeps PostgreSQL's own settings."""


class PostgreSQL:
    """A running server; `new_database` gives the URL of an empty database with the run's tables."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._server = create_engine(self._url("postgres"), isolation_level="AUTOCOMMIT")
        self._execute("CREATE DATABASE template_run")
        open_database(self._url("template_run"), create=True).dispose()

    def new_database(self, like: str = "") -> str:
        """URL of a new database: without rows, or a copy of the one at URL `like`, which nobody may have open."""
        name, template = f"run_{next(self._numbers)}", make_url(like).database if like else "template_run"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self._url(name)

    def drop(self, url: str) -> None:
        """Remove a database at once: a thousand files each would take minutes to remove at the end."""
        self._execute(f"DROP DATABASE {make_url(url).database} WITH (FORCE)")

    def close(self) -> None:
        self._server.dispose()

    def _url(self, name: str) -> str:
        return f"postgresql+psycopg://gyre@/{name}?host={self._folder}"

    def _execute(self, statement: str) -> None:
        with self._server.connect() as connection:
            connection.execute(text(statement))


@contextmanager
def running_server() -> Iterator[PostgreSQL]:
    """Starts a server in a folder of its own (its data in memory where there is some), stops it and removes both."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # nothing can be executed from there
    folder, data = (Path(tempfile.mkdtemp(prefix="gyre-postgresql-", dir=where)) for where in (None, memory))
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    try:
        for made in (folder, data):
            os.chown(made, user.pw_uid, user.pw_gid)
        binaries = _binaries_for(user, folder)
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        initialised = subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "gyre", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            **identity, cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if initialised.returncode:
            raise RuntimeError(f"initdb: {initialised.stderr}")
        command = [binaries / "postgres", "-D", data, "-k", folder]
        command += [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, **identity, cwd=folder, stdout=log, stderr=log, preexec_fn=_die_with_parent()
            )
        try:
            _await_socket(process, folder)
            server = PostgreSQL(folder)
            try:
                yield server
            finally:
                server.close()
        finally:
            process.send_signal(signal.SIGINT)  # its "fast" shutdown
            process.wait(120)
    finally:
        for made in (folder, data):
            shutil.rmtree(made, ignore_errors=True)


def _binaries_for(user: pwd.struct_passwd, folder: Path) -> Path:
    """Where `user` can run the server's binaries: as installed or, where that is closed to them, copied."""
    package = importlib.util.find_spec("pgserver")
    if package is None or package.origin is None:
        raise RuntimeError("the server's binaries are missing; `make setup` installs them")
    installed = Path(package.origin).resolve().with_name("pginstall")
    if all(parent.stat().st_mode & stat.S_IXOTH or parent.stat().st_uid == user.pw_uid for parent in installed.parents):
        return installed / "bin"
    copy = folder / "installed"
    shutil.copytree(installed.parent, copy / "pgserver", symlinks=True)
    shutil.copytree(installed.parents[1] / "pgserver.libs", copy / "pgserver.libs", symlinks=True)
    return copy / "pgserver" / "pginstall" / "bin"


def _die_with_parent() -> Callable[[], None]:
    """A test run that is cut off leaves no server behind (Linux: PR_SET_PDEATHSIG)."""
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(1, signal.SIGQUIT)


def _await_socket(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until the server takes connections: it says so in its log."""
    deadline = time.monotonic() + _START_SECONDS
    while "ready to accept connections" not in (text := (folder / "log").read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL does not start:\n{text}")
        time.sleep(0.05)

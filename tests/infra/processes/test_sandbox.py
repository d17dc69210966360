"""What a sandboxed command can see, write and reach, tried from inside; and that nothing of it outlives its runner.

Cases 48 (left-over processes) once more, with what only a sandbox can promise. Where this machine allows no sandbox the
tests say so; `gyre doctor` says the same.
"""

import asyncio
import dataclasses
import os
import signal
import socket
import sys
import threading
import time

import pytest

from infra.ports import free_ports
from infra.processes.isolation import credentials, isolation_here
from infra.processes.launch import end_marked, running
from infra.processes.tree import all_pids, descendants, living

HERE = isolation_here()
pytestmark = pytest.mark.skipif(not HERE.files, reason=f"no sandbox here: {HERE.reason}")
needs_network = pytest.mark.skipif(not HERE.network, reason=f"no network of one's own here: {HERE.reason}")


class Behind:
    """A server on loopback that answers every connection with `text`."""

    def __init__(self, text: bytes = b"the proxy", port: int = 0) -> None:
        self._server = socket.create_server(("127.0.0.1", port))
        self.port = self._server.getsockname()[1]
        self._text = text
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                connection.sendall(self._text)

    def close(self) -> None:
        if self._server.fileno() >= 0:
            # A thread that waits in accept would keep the socket alive.
            self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()


@pytest.fixture
def behind():
    server = Behind()
    yield server
    server.close()


@pytest.fixture
def boxed(shell, tmp_path, behind):
    """Makes a sandboxed job of a shell script in `app/`; `secrets/` beside it is hidden."""
    for name in ("app", "tmp", "secrets", "others"):
        (tmp_path / name).mkdir()
    (tmp_path / "secrets" / "token").write_text("a secret")

    def make(script, *, argv=None, stdin="", **limits):
        sandbox = HERE.sandbox(
            writable=(tmp_path / "app",),
            temporary=tmp_path / "tmp",
            hidden=(tmp_path / "secrets",),
            needed=(tmp_path,),
            proxy=("127.0.0.1", behind.port),
        )
        job = shell(script, argv=argv, **limits)
        return dataclasses.replace(job, cwd=str(tmp_path / "app"), stdin=stdin, sandbox=sandbox)

    return make


async def run(runners, folder, job):
    runners.start(folder, job)
    return await runners.follow(folder)


async def until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition never came true"
        await asyncio.sleep(0.02)


def python(text):
    return (sys.executable, "-I", "-S", "-c", text)


async def test_codes_output_and_input_are_those_of_the_command(runners, boxed, tmp_path):
    (tmp_path / "given").write_text("from a file\n")
    job = boxed("cat; echo err >&2; exit 3", stdin=str(tmp_path / "given"))
    result = await run(runners, tmp_path / "run", job)
    assert (result.end, result.exit_code, result.survivors) == ("exited", 3, 0)
    assert (tmp_path / "run/stdout.log").read_text() == "from a file\n"
    assert (tmp_path / "run/stderr.log").read_text() == "err\n"
    assert (await run(runners, tmp_path / "killed", boxed("kill -9 $$"))).exit_code == -9


async def test_a_command_that_is_not_there_is_unstartable(runners, boxed, tmp_path):
    result = await run(runners, tmp_path / "run", boxed("", argv=("no-such-harness",)))
    assert result.end == "unstartable"
    assert "no-such-harness" in result.detail


async def test_it_writes_its_own_folders_and_sees_no_secrets(runners, boxed, tmp_path):
    script = f"""
echo mine > here; echo mine > /tmp/there
echo stolen > {tmp_path}/others/x; cat {tmp_path}/secrets/token; ls -A {tmp_path}/secrets
"""
    await run(runners, tmp_path / "run", boxed(script))
    assert (tmp_path / "app/here").read_text() == (tmp_path / "tmp/there").read_text() == "mine\n"
    assert list((tmp_path / "others").iterdir()) == []
    assert (tmp_path / "run/stdout.log").read_text() == ""
    assert "Read-only file system" in (tmp_path / "run/stderr.log").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_root_may_work_on_files_of_other_users_in_its_workspace_alone(runners, boxed, tmp_path):
    for folder in ("app", "others"):
        (tmp_path / folder / "theirs").write_text("as it was\n")
        (tmp_path / folder / "theirs").chmod(0o600)
        os.chown(tmp_path / folder / "theirs", 65534, 65534)
    job = boxed(
        f"echo changed > theirs; chown 0 theirs; echo changed > {tmp_path}/others/theirs; mount -t tmpfs x /mnt"
    )
    await run(runners, tmp_path / "run", job)
    assert (tmp_path / "app/theirs").read_text() == "changed\n"
    assert (tmp_path / "app/theirs").stat().st_uid == 0
    assert (tmp_path / "others/theirs").read_text() == "as it was\n"
    assert "mount" in (tmp_path / "run/stderr.log").read_text()


async def test_places_of_credentials_are_hidden(runners, boxed, tmp_path, monkeypatch):
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/id").write_text("key")
    (tmp_path / ".netrc").write_text("machine x password y")
    assert {path.name for path in credentials(tmp_path)} == {".ssh", ".netrc"}
    monkeypatch.setenv("HOME", str(tmp_path))
    await run(runners, tmp_path / "run", boxed(f"cat {tmp_path}/.ssh/id {tmp_path}/.netrc"))
    assert (tmp_path / "run/stdout.log").read_text() == ""


async def test_it_sees_no_process_but_its_own(runners, boxed, tmp_path):
    await run(runners, tmp_path / "run", boxed("ls -d /proc/[0-9]*; kill -9 -1; echo alive"))
    seen = (tmp_path / "run/stdout.log").read_text().split()
    assert len([line for line in seen if line.startswith("/proc/")]) <= 4


ASK = """
import socket, sys
for port in map(int, sys.argv[1:]):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=120) as s:
            print(s.recv(100).decode())
    except OSError as error:
        print(type(error).__name__)
"""


@needs_network
async def test_the_proxy_is_all_it_reaches(runners, boxed, behind, tmp_path):
    other = Behind(b"the admin port")
    argv = (*python(ASK), str(behind.port), str(other.port))
    await run(runners, tmp_path / "run", boxed("", argv=argv))
    other.close()
    assert (tmp_path / "run/stdout.log").read_text().split("\n")[:2] == ["the proxy", "ConnectionRefusedError"]


@needs_network
async def test_a_proxy_that_restarts_is_waited_for(runners, boxed, behind, tmp_path):
    behind.close()
    (behind.port,) = free_ports(1)  # none that an outgoing connection could take meanwhile
    runners.start(tmp_path / "run", boxed("", argv=(*python(ASK), str(behind.port))))
    await until(lambda: running(tmp_path / "run") is not None)
    await asyncio.sleep(0.3)
    again = Behind(b"the next proxy", behind.port)
    await runners.follow(tmp_path / "run")
    again.close()
    assert (tmp_path / "run/stdout.log").read_text() == "the next proxy\n"


async def test_term_comes_before_kill(runners, boxed, tmp_path):
    job = boxed(
        "trap 'echo saved > saved; exit 0' TERM; while :; do sleep 0.05; done", wall_seconds=6.0, grace_seconds=120
    )
    result = await run(runners, tmp_path / "run", job)
    assert (result.end, result.exit_code, result.survivors) == ("wall_limit", 0, 0)
    assert (tmp_path / "app/saved").exists()


LEFT_OVERS = [
    "sleep 1000 &",
    "setsid nohup sh -c 'yes > flood' >/dev/null 2>&1 &",
    "(setsid sh -c 'sleep 1000 & exit 0' &) ; exit 0",
    "setsid sh -c \"trap '' TERM HUP; while :; do date > late; sleep 0.05; done\" &",
    "setsid env -i /bin/sh -c 'sleep 1000' >/dev/null 2>&1 </dev/null &",
]


@pytest.mark.parametrize("script", LEFT_OVERS)
async def test_nothing_outlives_the_command(runners, boxed, tmp_path, script):
    before = set(all_pids())
    result = await run(runners, tmp_path / "run", boxed(f"{script}\nsleep 0.1"))
    assert (result.end, result.survivors) == ("exited", 0)
    assert not [pid for pid in set(all_pids()) - before if _is_of(pid, tmp_path)]


async def test_nothing_outlives_a_runner_that_was_killed(runners, boxed, tmp_path):
    """Without a sandbox a process that left its session and its environment would be beyond reach."""
    script = "setsid env -i /bin/sh -c 'while :; do date > late; sleep 0.05; done' & touch ready; sleep 1000"
    runners.start(tmp_path / "run", boxed(script))
    await until(lambda: (tmp_path / "app/late").exists() and running(tmp_path / "run") is not None)
    runner = running(tmp_path / "run")
    assert runner is not None
    await until(lambda: len(living(descendants(runner.pid))) >= 4)  # one look may miss who forks just then
    family = living(descendants(runner.pid))
    runner.send(signal.SIGKILL)
    await until(lambda: not [process for process in family if process.alive()])
    assert (await runners.follow(tmp_path / "run")).end == "runner_lost"
    assert end_marked(str(tmp_path)) == 0


def _is_of(pid, folder):
    try:
        with open(f"/proc/{pid}/mountinfo") as mounts:
            return str(folder) in mounts.read()
    except OSError:
        return False

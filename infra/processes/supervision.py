"""The runner: supervises one command to its end, outliving whoever started it.

Purpose: start the command in a session of its own under its limits, record a bounded part of its output, end it at a
limit or on SIGTERM, and leave `result.json` only when no process of it is alive. The runner is a child subreaper:
whatever the command leaves behind becomes the runner's child, is found, ended and reaped. It knows nothing of
executions, models or Temporal.
"""

import contextlib
import ctypes
import fcntl
import os
import selectors
import signal
import socket
import time
from pathlib import Path

from infra.processes.capture import CappedCapture
from infra.processes.identity import ProcessIdentity
from infra.processes.job import Job, Result, Started
from infra.processes.limits import apply_in_child, exceeded, usage_below
from infra.processes.relay import Relay
from infra.processes.sandbox import receive_door
from infra.processes.tree import MARKER, descendants, end_all, living, marked

_PR_SET_CHILD_SUBREAPER = 36
_SAMPLE_SECONDS = 0.1
_CHUNK = 1 << 16


def supervise(folder: Path) -> Result | None:
    """Run the job in `folder`. None: another runner has it, or had it and died; nothing was started."""
    lock = os.open(folder / "runner.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    try:
        if (folder / "runner.json").exists() or (folder / "result.json").exists():
            return None
        result = _Supervision(folder, Job.load(folder)).run()
        result.save(folder)
        return result
    finally:
        os.close(lock)


class _Supervision:
    """One command from start to end. Single-threaded: one selector waits for output, children and signals."""

    def __init__(self, folder: Path, job: Job) -> None:
        self._folder, self._job = folder, job
        self._selector = selectors.DefaultSelector()
        self._stop: str | None = None
        self._command = 0
        self._status: int | None = None

    def run(self) -> Result:
        self._become_subreaper()
        self._catch_signals()
        with contextlib.ExitStack() as files:
            captures = {
                name: CappedCapture(
                    files.enter_context(open(self._folder / f"{name}.log", "wb")), self._job.limits.output_bytes // 2
                )
                for name in ("stdout", "stderr")
            }
            began, clock = time.time(), time.monotonic()
            problem = self._start(captures)
            if problem:
                self._end_everything("cancelled")
                self._drain()
                return Result(end="unstartable", detail=problem, ended_at=time.time())
            runner = ProcessIdentity.of(os.getpid())
            if runner is None:
                raise RuntimeError("the runner does not find itself in /proc")
            Started(runner, ProcessIdentity.of(self._command), began).save(self._folder)
            end = self._watch(clock + self._job.limits.wall_seconds)
            seconds = time.monotonic() - clock
            left_over, survivors = self._end_everything(end)
            self._drain()
            dropped = {name: capture.close() for name, capture in captures.items()}
        return Result(
            end=end,
            exit_code=self._exit_code(),
            seconds=seconds,
            ended_at=time.time(),
            stdout_bytes=captures["stdout"].total,
            stdout_dropped=dropped["stdout"],
            stderr_bytes=captures["stderr"].total,
            stderr_dropped=dropped["stderr"],
            left_over=left_over,
            survivors=survivors,
        )

    def _exit_code(self) -> int | None:
        """Negative for a signal. A sandbox reports its command's signal as a shell does: 128 and the number."""
        if self._status is None:
            return None
        code = os.waitstatus_to_exitcode(self._status)
        return 128 - code if self._job.sandbox is not None and 128 < code <= 192 else code

    def _become_subreaper(self) -> None:
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot become a child subreaper")

    def _catch_signals(self) -> None:
        """SIGTERM ends the command; a hang-up or Ctrl-C meant for the terminal does not reach it."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._request_stop("cancelled"))
        for ignored in (signal.SIGHUP, signal.SIGINT):
            signal.signal(ignored, signal.SIG_IGN)
        self._selector.register(reader, selectors.EVENT_READ, None)

    def _request_stop(self, reason: str) -> None:
        self._stop = self._stop or reason

    def _start(self, captures: dict[str, CappedCapture]) -> str:
        """Fork and exec the command; returns why it could not be started, or an empty text."""
        out, err, failure = (os.pipe2(os.O_CLOEXEC) for _ in range(3))
        channel, far_channel = socket.socketpair()
        self._command = os.fork()
        if self._command == 0:
            self._exec(out[1], err[1], failure[1], far_channel.fileno())
        for _, writer in (out, err, failure):
            os.close(writer)
        far_channel.close()
        with os.fdopen(failure[0], "rb") as pipe, channel:
            problem = pipe.read().decode(errors="replace") or self._open_door(channel)
        for reader, capture in ((out[0], captures["stdout"]), (err[0], captures["stderr"])):
            os.set_blocking(reader, False)
            self._selector.register(reader, selectors.EVENT_READ, capture)
        return problem

    def _open_door(self, channel: socket.socket) -> str:
        """Wait until the command is about to start in its sandbox, and serve its one port; returns why it was not."""
        sandbox = self._job.sandbox
        if sandbox is None:
            return ""
        door = receive_door(channel)
        if isinstance(door, str):
            return door
        if door is not None:
            Relay(door, sandbox.behind_host, sandbox.behind_port).start()
        return ""

    def _exec(self, out: int, err: int, failure: int, channel: int) -> None:
        """In the child: never returns."""
        try:
            os.setsid()
            for number in (
                signal.SIGCHLD,
                signal.SIGTERM,
                signal.SIGHUP,
                signal.SIGINT,
                signal.SIGPIPE,
                signal.SIGXFSZ,
            ):
                signal.signal(number, signal.SIG_DFL)
            job, argv = self._job, self._job.argv
            given = os.open(job.stdin or os.devnull, os.O_RDONLY)
            for source, target in ((given, 0), (out, 1), (err, 2)):
                os.dup2(source, target)
            os.chdir(job.cwd)
            os.umask(0o022)
            if job.sandbox is not None:
                argv = job.sandbox.command(argv, job.cwd, channel)
                os.set_inheritable(channel, True)
                # A polite end is for the command, not for the walls around it.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            apply_in_child(job.limits)
            os.execvpe(argv[0], argv, {**job.env, MARKER: job.marker})
        except BaseException as error:
            os.write(failure, f"{self._job.argv[0]}: {error}".encode(errors="replace")[:1000])
        finally:
            os._exit(127)

    def _watch(self, deadline: float) -> str:
        """Until the command ends or must be ended; returns which."""
        sample_at = time.monotonic() + _SAMPLE_SECONDS
        while True:
            self._reap()
            if self._status is not None:
                return "exited"
            now = time.monotonic()
            if self._stop:
                return self._stop
            if now >= deadline:
                return "wall_limit"
            if now >= sample_at:
                over = exceeded(usage_below(os.getpid()), self._job.limits)
                if over:
                    return over
                sample_at = now + _SAMPLE_SECONDS
            self._pump(max(0.0, min(deadline, sample_at) - now))

    def _end_everything(self, end: str) -> tuple[int, int]:
        """End what is left; returns how many outlived the command, and how many could not be ended."""
        me = os.getpid()
        grace = self._job.limits.grace_seconds
        if end == "process_limit":
            grace = 0.0  # a fork storm uses a grace period to grow
            with contextlib.suppress(OSError):
                # Among thousands of runnable processes this one must still get its turn; needs privilege.
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        left_over = len(self._below()) if end == "exited" else 0
        end_all(self._below, grace_seconds=grace, pause=self._reap_and_pump)
        # A second look, by the marker: what an earlier, lost runner of this execution may have left.
        survivors = end_all(
            lambda: [*self._below(), *living(pid for pid in marked(self._job.marker) if pid != me)],
            grace_seconds=0,
            pause=self._reap_and_pump,
        )
        self._reap()
        return left_over, len(survivors)

    def _below(self) -> list[ProcessIdentity]:
        return living(descendants(os.getpid()))

    def _reap_and_pump(self, seconds: float) -> None:
        self._pump(seconds)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._command:
                self._status = status

    def _drain(self) -> None:
        """What the pipes still hold; bounded, because a survivor may go on writing."""
        for _ in range(64):
            if not self._pump(0):
                return

    def _pump(self, seconds: float) -> int:
        """Read what the pipes hold; wait up to `seconds` for something to happen; returns how much happened."""
        ready = self._selector.select(seconds)
        for key, _ in ready:
            try:
                data = os.read(key.fd, _CHUNK)
            except BlockingIOError:
                continue
            if key.data is None:
                continue
            if data:
                key.data.feed(data)
            else:
                self._selector.unregister(key.fd)
                os.close(key.fd)
        return len(ready)

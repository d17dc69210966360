import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.transfer import TransferEndpoint
from workflows.messages.transfer import BufferManifest

ROOT = Path(__file__).parents[3]


def wait_stopped(pid: int, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        tasks = Path(f"/proc/{pid}/task").glob("*/stat")
        if all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks):
            return
        time.sleep(0.005)
    raise TimeoutError(f"{pid} did not stop")


class Source:
    """A peer process serving `count` buffers of `size` bytes."""

    def __init__(self, count: int, size: int) -> None:
        script = Path(__file__).with_name("source_process.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(count), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        self.manifest = BufferManifest.model_validate_json(self.process.stdout.readline())

    def command(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def stop(self) -> None:
        """Hang the process; returns once every thread of it has stopped, else one may still answer a read."""
        self.process.send_signal(signal.SIGSTOP)
        wait_stopped(self.process.pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(120)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def source() -> Iterator[Callable[[int, int], Source]]:
    started: list[Source] = []

    def start(count: int, size: int) -> Source:
        started.append(Source(count, size))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture(scope="session")
def endpoint() -> TransferEndpoint:
    return TransferEndpoint()

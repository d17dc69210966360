"""A real Temporal development server for the tests of this folder, in memory, with our search attributes."""

import asyncio
import ctypes
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from infra.temporal.server import SEARCH_ATTRIBUTES, temporal_binary

START_SECONDS = 120.0
"""How long a server may take to serve its namespace on a busy machine."""
PORTS = 3
"""How many ports are tried: one that was free may be somebody else's when the server wants it."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def dev_server(*dynamic_config: str) -> Iterator[str]:
    """Starts a server, yields its address, stops it."""
    process, port = _started(dynamic_config)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        _stop(process)


def _started(dynamic_config: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], int]:
    """A server that listens, and its port: a free one, unless somebody else has taken it meanwhile."""
    for _ in range(PORTS):
        port = _free_port()
        process = _begun(port, dynamic_config)
        if _listens(process, port):
            return process, port
        _stop(process)
    raise RuntimeError("no development server listens")


def _begun(port: int, dynamic_config: tuple[str, ...]) -> subprocess.Popen[bytes]:
    command = [temporal_binary(), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port)]
    command += ["--log-level", "never"]
    for name in SEARCH_ATTRIBUTES:
        command += ["--search-attribute", f"{name}=Keyword"]
    for value in ("frontend.WorkflowPauseEnabled=true", *dynamic_config):
        command += ["--dynamic-config-value", value]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=_die_with_parent)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


def _die_with_parent() -> None:
    """A test run that is cut off by its time limit leaves no server behind (Linux: PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until it does; False when it has ended, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.05)
    return False


async def connect(address: str) -> Client:
    """A client with the production data converter; waits until the namespace is there."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            client = await Client.connect(address, data_converter=pydantic_data_converter)
            await client.count_workflows()
            return client
        except Exception:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)

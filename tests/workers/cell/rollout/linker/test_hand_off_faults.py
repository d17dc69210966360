"""Field case 42 with real processes: source or destination die, or hang, in the middle of a hand-off."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.engine.linker_client import LinkerClient
from infra.ports import free_ports
from tests.infra.transfer.conftest import wait_stopped
from workflows.messages.errors import EngineUnavailable, Fenced, InvalidInput, StillHeld, TransferFailed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[5]
PAGE = 1 << 20
LENGTH = 200


class Linker:
    """A store process and how to reach it."""

    def __init__(self, length: int) -> None:
        (self.port,) = free_ports(1)
        arguments = [str(self.port), str(LENGTH + 8), str(PAGE), "a", str(length)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.workers.cell.rollout.linker.store_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def wait(self) -> "Linker":
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == "ready"
        return self

    def client(self, token: str = "secret") -> LinkerClient:
        return LinkerClient(f"http://127.0.0.1:{self.port}", token)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(120)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def linker() -> Iterator[Callable[[int], Linker]]:
    started: list[Linker] = []

    def start(length: int) -> Linker:
        started.append(Linker(length))
        return started[-1]

    yield start
    for each in started:
        each.end()


async def test_the_control_port_wants_its_token_and_knows_its_errors(linker):
    source = linker(3).wait()
    stranger, client = source.client("guess"), source.client()
    try:
        with pytest.raises(InvalidInput, match="token"):
            await stranger.stats()
        await client.retain(2, ("a",))
        with pytest.raises(Fenced):
            await client.retain(1, ("a",))
        with pytest.raises(StillHeld):
            await client.release(2)
        assert (await client.release(2, abandon=True)).released
    finally:
        await stranger.close()
        await client.close()


async def test_the_destination_dies_in_the_middle_of_its_read(linker):
    source, destination = linker(LENGTH), linker(0)
    at_source, at_destination = source.wait().client(), destination.wait().client()
    try:
        await at_source.retain(1, ("a",), hold_seconds=15)
        manifest = await at_source.manifest(1)
        # A source that stands still, so that the read is under way however late the destination dies.
        source.process.send_signal(signal.SIGSTOP)
        wait_stopped(source.process.pid)
        pull = asyncio.create_task(at_destination.pull(manifest))
        await asyncio.sleep(0.3)
        destination.process.kill()
        with pytest.raises(EngineUnavailable):
            await pull
        source.process.send_signal(signal.SIGCONT)
        assert (await at_source.stats()).pinned_pages == LENGTH, "nobody acknowledged: the pins stay"
        for _ in range(1200):
            if (await at_source.stats()).leases == 0:
                break
            await asyncio.sleep(0.1)
        stats = await at_source.stats()
        assert (stats.pinned_pages, stats.leases, stats.expired_leases) == (0, 0, 1)
        assert not (await at_source.acknowledge(1)).released
        assert not (await at_source.release(1)).released
    finally:
        await at_source.close()
        await at_destination.close()


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
async def test_the_source_dies_or_hangs_and_the_destination_stays_usable(linker, fault):
    source, destination, other = linker(LENGTH), linker(0), linker(5)
    at_source, at_destination, at_other = (each.wait().client() for each in (source, destination, other))
    try:
        await at_source.retain(1, ("a",))
        manifest = await at_source.manifest(1)
        source.process.send_signal(fault)
        if fault == signal.SIGSTOP:
            wait_stopped(source.process.pid)
        else:
            source.process.wait(120)
        with pytest.raises(TransferFailed):
            await at_destination.pull(manifest, timeout_seconds=2)
        assert (await at_destination.stats()).used_pages == 0
        await at_other.retain(1, ("a",))
        pulled = await at_destination.pull(await at_other.manifest(1), timeout_seconds=200)
        assert (pulled.arrived, pulled.pages) == (("a",), 5)
    finally:
        for client in (at_source, at_destination, at_other):
            await client.close()


async def test_whoever_asked_for_the_pull_goes_away_and_asks_again(linker):
    source, destination = linker(LENGTH), linker(0)
    at_source, impatient, patient = source.wait().client(), destination.wait().client(), destination.client()
    try:
        await at_source.retain(1, ("a",))
        manifest = await at_source.manifest(1)
        pull = asyncio.create_task(impatient.pull(manifest))
        await asyncio.sleep(0.02)
        pull.cancel()
        await asyncio.gather(pull, return_exceptions=True)
        pulled = await patient.pull(manifest, timeout_seconds=200)
        assert pulled.arrived == ("a",)
        assert pulled.pages + pulled.present == LENGTH
        assert (await at_source.acknowledge(1)).released
    finally:
        for client in (at_source, impatient, patient):
            await client.close()

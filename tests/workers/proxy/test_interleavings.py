"""Random interleavings of stream, abort, drain, publish, engine death, client disconnect and retry: nothing is lost."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed

import pytest

from tests.workers.proxy.drill import Drill
from tests.workers.proxy.patches import Patches
from tests.workers.proxy.virtual import run

QUICK = 40
ALL, SHARE = 10_000, 250


def play(folder, seed):
    drill = Drill(folder, seed)
    try:
        _, left = run(drill.run())
        assert not left, f"nobody waits for {left}"
    except BaseException as error:
        error.add_note(f"seed {seed}")
        for line in drill.log:
            error.add_note(line)
        raise


@pytest.mark.parametrize("first", range(0, QUICK, 8))
def test_interleavings(folder, monkeypatch, first):
    Patches(monkeypatch)
    for seed in range(first, first + 8):
        play(folder, seed)


def share(folder, first):
    """The seeds of one share, in a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        Patches(patch)
        for seed in range(max(first, QUICK), first + SHARE):
            play(folder, seed)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_interleavings(folder):
    """A quarter of an hour of one core, so every core takes part."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawned) as pool:
        shares = [pool.submit(share, folder, first) for first in range(0, ALL, SHARE)]
        for finished in as_completed(shares):
            finished.result()

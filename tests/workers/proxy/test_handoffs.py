"""Field case 42: a hand-off that is never acknowledged, lost, late or told twice. Nobody waits longer than agreed."""

import asyncio

from tests.workers.proxy.virtual import run
from workers.proxy.handoffs import Handoffs


def clock():
    return asyncio.get_running_loop().time()


async def waited(handoffs, execution):
    began = clock()
    did = await handoffs.wait(execution)
    return did, round(clock() - began, 3)


def test_who_waits_how_long():
    async def play():
        handoffs = Handoffs()
        assert await waited(handoffs, "a") == (False, 0)
        handoffs.expect("lease", ["a", "b", "c"], 5)
        handoffs.expect("lease", ["a", "b", "c"], 500)  # asked again: the same bound
        lost = asyncio.ensure_future(waited(handoffs, "a"))
        twice = [asyncio.ensure_future(waited(handoffs, "b")) for _ in range(2)]
        gone = asyncio.ensure_future(waited(handoffs, "c"))
        await asyncio.sleep(2)
        gone.cancel()  # its client hung up and its execution was closed
        handoffs.done("another lease", ["a", "b"])
        handoffs.done("lease", ["b", "never heard of"])
        handoffs.done("lease", ["b"])  # a duplicate
        assert [await task for task in twice] == [(True, 2), (True, 2)]
        assert await waited(handoffs, "b") == (False, 0)  # it is there
        assert await lost == (True, 5)
        assert await waited(handoffs, "a") == (False, 0)  # once is enough

    run(play())


def test_a_newer_hand_off_takes_the_place_of_an_older_one():
    async def play():
        handoffs = Handoffs()
        handoffs.expect("old", ["a"], 60)
        waiting = asyncio.ensure_future(waited(handoffs, "a"))
        await asyncio.sleep(1)
        handoffs.expect("new", ["a"], 60)
        assert await waiting == (True, 1)  # its old destination leaves as well: it looks for another one
        handoffs.done("old", ["a"])  # too late
        again = asyncio.ensure_future(waited(handoffs, "a"))
        await asyncio.sleep(3)
        handoffs.done("new", ["a"])
        assert await again == (True, 3)

    run(play())


def test_expectations_nobody_asks_for_are_forgotten():
    async def play():
        handoffs = Handoffs()
        for lease in range(100):
            handoffs.expect(f"lease-{lease}", [f"execution-{lease}"], 5)
            await asyncio.sleep(1)
        assert len(handoffs._expected) <= 6
        await asyncio.sleep(10)
        assert await waited(handoffs, "execution-99") == (False, 0)

    run(play())

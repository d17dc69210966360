"""Gates of the harness host: shares that grow take on at once, shares that shrink finish what they have."""

import asyncio

from activities.slots import Gate, SlotActivities
from workflows.messages.control import ShareSlots


async def inside(gate: Gate, leave: asyncio.Event, entered: list[int], number: int) -> None:
    async with gate():
        entered.append(number)
        await leave.wait()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_as_many_pass_as_the_limit_says() -> None:
    gate, leave, entered = Gate(2), asyncio.Event(), list[int]()
    tasks = [asyncio.create_task(inside(gate, leave, entered, number)) for number in range(4)]
    await settled()
    assert (entered, gate.inside) == ([0, 1], 2)
    await gate.resize(3)
    await settled()
    assert entered == [0, 1, 2]
    await gate.resize(1)
    leave.set()
    await asyncio.gather(*tasks)
    assert (sorted(entered), gate.inside) == ([0, 1, 2, 3], 0)


async def test_a_smaller_share_cuts_nothing_off() -> None:
    gate, leave, entered = Gate(2), asyncio.Event(), list[int]()
    tasks = [asyncio.create_task(inside(gate, leave, entered, number)) for number in range(2)]
    await settled()
    await gate.resize(1)
    assert gate.inside == 2
    leave.set()
    await asyncio.gather(*tasks)


async def test_one_that_waits_can_be_cancelled() -> None:
    gate, leave, entered = Gate(1), asyncio.Event(), list[int]()
    first = asyncio.create_task(inside(gate, leave, entered, 0))
    await settled()
    second = asyncio.create_task(inside(gate, leave, entered, 1))
    await settled()
    second.cancel()
    leave.set()
    await first
    assert (entered, gate.inside) == ([0], 0)


async def test_the_newest_share_counts_and_what_is_in_use_is_told() -> None:
    slots, leave, entered = SlotActivities(harness=1, evaluator=3), asyncio.Event(), list[int]()
    task = asyncio.create_task(inside(slots.evaluator, leave, entered, 0))
    await settled()
    used = await slots.share_slots(ShareSlots(run="r", change=2, harness=3, evaluator=1))
    assert (used.harness, used.evaluator) == (0, 1)
    await slots.share_slots(ShareSlots(run="r", change=1, harness=1, evaluator=3))
    assert (slots.harness.limit, slots.evaluator.limit) == (3, 1)
    leave.set()
    await task

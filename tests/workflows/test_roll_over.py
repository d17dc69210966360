"""Continue-as-new under load (case 57) and sizes (case 58), on a server that suggests it after 50 events."""

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from uuid import uuid4

import pytest
from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from infra.temporal.client import ask
from tests.workflows.by_hand import ByHand
from tests.workflows.histories import broken_tasks, histories_of, largest
from tests.workflows.server import dev_server
from tests.workflows.watching import watching
from tests.workflows.world import FakeWorld
from workers.control.worker import workflow_worker
from workflows.cell import CellState
from workflows.messages import ids
from workflows.messages.errors import Fenced
from workflows.messages.scheduling import Weights
from workflows.messages.transition import Direction, MoveCell, Resolution, TransitionReport

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


@pytest.fixture(scope="module")
def temporal_address() -> Iterator[str]:
    with dev_server("limit.historyCount.suggestContinueAsNew=50") as address:
        yield address


@asynccontextmanager
async def by_hand(client, folder, slots):
    async with workflow_worker(client):
        world = ByHand(client, f"run-{uuid4().hex[:8]}", folder, slots)
        try:
            await world.start()
            yield world
        finally:
            await world.close()
        assert world.problems == []


async def rolled_over(world: FakeWorld, workflow_id: str, runs: int) -> None:
    """Wait until as many runs of it are listed: the list is a little behind."""
    async with asyncio.timeout(200):
        while len([1 async for _ in world.client.list_workflows(f"WorkflowId = '{workflow_id}'")]) < runs:
            await asyncio.sleep(0.2)


async def nothing_broke(world: FakeWorld) -> None:
    faults = [fault for _, history in await histories_of(world.client, world.run) for fault in broken_tasks(history)]
    assert faults == []


async def test_the_scheduler_loses_no_report_and_answers_every_update(client, tmp_path):
    async with by_hand(client, tmp_path, (120, 120)) as world, watching(world) as seen:
        burst = await world.start_burst(groups_per_step=25, executions_per_group=8)
        await world.eventually(lambda: len(world.launched) == 200, seconds=200)
        asked = [asyncio.create_task(_ask(world)) for _ in range(5)]
        await world.close_all(world.launched, twice=True)
        await burst.result()
        asked += [asyncio.create_task(_ask(world)) for _ in range(5)]
        answers = await asyncio.gather(*asked)
        assert answers == ["NothingBlocked: no step is blocked here"] * 10
        assert seen[-1] == (200, 200, 200)
        assert len(world.admitted) == 25
        await rolled_over(world, ids.scheduler_id(world.run), 4)
        await world.whole_ledger()
        numbers = sorted(int(token.rsplit("/", 1)[1]) for token in world.ledger)
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), "every number is written"
        entries = [world.ledger[f"{world.run}/{number}"] for number in numbers]
        decided = [(e.kind, e.cell, e.reasons[0]) for e in entries if e.kind in ("move", "refuse")]
        repeated = [one for one, other in pairwise(decided) if one == other]
        assert repeated == []  # a refusal is told once for each change of its reason, also across a roll-over
        await nothing_broke(world)


async def _ask(world: FakeWorld) -> str:
    """What becomes of an update, whatever run of the workflow the question meets. The server gives one back unread when
    the roll-over it met had to be tried again; then it is asked again, as a person would."""
    async with asyncio.timeout(200):
        while True:
            try:
                return await world.scheduler.execute_update("resolve_step", Resolution.RETRY)
            except WorkflowUpdateFailedError as error:
                return str(error.cause)
            except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
                await asyncio.sleep(0.2)


async def test_a_blocked_step_is_resolved_across_a_roll_over(client, tmp_path):
    """A parked job must neither be lost by a roll-over nor stop everything else until somebody resolves it."""
    async with by_hand(client, tmp_path, (40, 40)) as world:
        world.faults.add("admit_group", error=Fenced("broken"), when=lambda request: request.group == 0)
        burst = await world.start_burst(groups_per_step=20, executions_per_group=2)
        await world.eventually(lambda: len(world.launched) == 40)
        first = [spec for spec in world.launched if spec.group == 0]
        await world.close_all(first)
        await world.blocked(world.scheduler.id)
        await world.close_all([spec for spec in world.launched if spec.group], twice=True)
        await world.until(lambda state: state.accounts.finished == 40)
        evaluation = await world.start_burst("later", purpose="evaluate")
        assert await ask(world.scheduler, "blocked_steps", list[str]) == ["admit_group: Fenced: broken"]
        assert (await _ask(world)).endswith("retry")
        assert (await burst.result()).version == 1
        await world.eventually(lambda: len(world.launched) == 44)
        await world.close_all(world.launched[40:])
        assert (await evaluation.result()).executions == 4
        await nothing_broke(world)


def published(world: FakeWorld) -> list[TransitionReport]:
    return [report for report in world.transitions if report.cell == 1 and report.direction is Direction.PUBLISH]


async def test_a_cell_takes_every_move_once(make_world):
    """Signals may overtake each other: what it serves only ever gets newer."""
    world = await make_world()
    name = ids.cell_workflow_id(world.run, 1)
    moves = [
        MoveCell(
            move=f"hand/{number}",
            direction=Direction.PUBLISH,
            weights=Weights(version=number, checksum=f"hand@{number}"),
        )
        for number in range(1, 25)
    ]
    for move in moves:
        await world.handle(name).signal("move", move)
    late = [move.model_copy(update={"move": f"late/{move.move}"}) for move in moves]
    await asyncio.gather(*(world.handle(name).signal("move", move) for move in [*moves, *late]))

    async def loaded() -> int | None:
        state = await ask(world.handle(name), "state", CellState)
        return None if state.waiting or state.loaded is None else state.loaded.version

    while await loaded() != 24:
        await asyncio.sleep(0.3)
    loads = [request.weights.version for request in world.called("load_weights") if request.cell == 1]
    assert loads == sorted(loads)
    assert loads[-1] == 24
    # A step may be given out twice, a publish is made once; the first version was its boot's.
    await world.eventually(lambda: len(published(world)) == len(set(loads)) - 1)
    assert {report.result for report in published(world)} == {"done"}
    await rolled_over(world, name, 4)
    await nothing_broke(world)


async def test_a_batch_and_its_burst_survive_roll_overs_and_a_lost_core(make_world):
    world = await make_world()
    world.micro_steps, world.micro_step_seconds = 12, 0.2
    burst = await world.start_burst(groups_per_step=4, policy={"hold_seconds": 0, "supply_fraction": 0})
    batch = ids.batch_id(world.run, "first", 0)
    await world.eventually(lambda: len(world.called("run_micro_step")) > 20, seconds=200)
    await world.boot(0)
    report = await burst.result()
    assert report.version == 1
    assert len(world.commits[batch].accepted) == 48
    await rolled_over(world, batch, 4)
    await nothing_broke(world)


async def test_payloads_stay_small_in_a_burst_of_realistic_size(client, tmp_path):
    """Case 58. 384 executions, 16 groups a step, errors of megabytes."""
    async with by_hand(client, tmp_path, (192, 192)) as world:
        world.micro_steps = 3
        huge = "x" * 5_000_000
        world.faults.add("admit_group", error=Fenced(huge))
        world.faults.add("join_batch", error=Fenced(huge))
        burst = await world.start_burst(groups_per_step=16, executions_per_group=12, steps=2)
        await world.eventually(lambda: len(world.launched) == 384, seconds=200)
        await world.close_all(world.launched)
        assert len((await world.blocked(world.scheduler.id))[0]) < 1000
        assert (await _ask(world)).endswith("retry")
        assert (await burst.result()).version == 2
        for kind, history in await histories_of(world.client, world.run):
            assert largest(history).ByteSize() < 100_000, kind

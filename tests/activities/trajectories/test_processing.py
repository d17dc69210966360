"""From records to a stored trajectory: only delivered calls of a trained role, once, the same for a retry."""

import numpy as np
import pytest
from sqlalchemy import Engine

from activities.trajectories.artifact import decode_trajectory
from activities.trajectories.processing import ProcessingActivities
from infra.objects import ObjectStore
from infra.records.executions import ExecutionRecords, execution_of
from workflows.messages.execution import ProcessedExecution


@pytest.fixture
def process(engine: Engine, objects: ObjectStore, host, environment):
    processing = ProcessingActivities(engine, objects, host.proxy)

    async def run(spec):
        host.records.open(spec, token_sha256="x", workspace="")
        return await environment().run(processing.process_execution, spec)

    return run


def stored(engine: Engine, objects: ObjectStore, spec):
    row = ExecutionRecords(engine).get(execution_of(spec))
    return decode_trajectory(objects.get(row.processed.payload))


async def test_undelivered_failed_open_side_and_empty_calls_are_no_targets(
    process, record_call, engine, objects, make_spec, make_task
):
    spec = make_spec(make_task("true"))
    record_call(spec, 0, [1, 2], [3, 4])
    for sequence, state in enumerate(["undelivered", "failed", "open"], start=1):
        record_call(spec, sequence, [1, 2, 3, 4, 9], [5], state=state)
    record_call(spec, 4, [8], [8], role="side")
    record_call(spec, 5, [1, 2, 3, 4, 9], [], spans=[])
    record_call(spec, 6, [1, 2, 3, 4, 9], [6, 7], spans=[[3, 1], [4, 1]])
    processed = await process(spec)
    assert processed == ProcessedExecution(
        calls=4,
        paths=1,
        target_tokens=4,
        oldest_version=3,
        newest_version=4,
        candidates=1,
        unique_tokens=7,
        expanded_tokens=7,
    )
    kept = stored(engine, objects, spec)
    (path,) = kept.header.paths
    assert kept.ids.tolist() == [1, 2, 3, 4, 9, 6, 7]
    assert kept.targets().tolist() == [False, False, True, True, False, True, True]
    assert kept.versions.tolist() == [-1, -1, 3, 3, -1, 3, 4]
    assert kept.logprobs[kept.targets()].tolist() == [np.float32(x) for x in (-0.5, -0.51, -0.5, -0.51)]
    assert [(span.call, span.offset, span.start, span.end) for span in path.spans] == [
        ("0-0", 0, 2, 4),
        ("0-6", 0, 5, 7),
    ]


async def test_a_retry_finds_what_was_stored(process, record_call, host, make_spec, make_task):
    spec = make_spec(make_task("true"))
    record_call(spec, 0, [1], [2])
    first = await process(spec)
    record_call(spec, 1, [1, 2, 3], [4])  # cannot happen: the proxy refuses calls from here on
    assert await process(spec) == first
    assert host.proxy.closed == [execution_of(spec)] * 2


async def test_no_call_at_all(process, engine, objects, make_spec, make_task):
    spec = make_spec(make_task("true"))
    processed = await process(spec)
    assert (processed.calls, processed.paths, processed.target_tokens, processed.oldest_version) == (0, 0, 0, None)
    assert stored(engine, objects, spec).header.paths == ()


async def test_one_that_was_never_prepared_has_its_row_all_the_same(
    engine, objects, host, environment, make_spec, make_task
):
    """With `no_artifact: zero` it counts as scored, and a member without a trajectory would be left out."""
    spec = make_spec(make_task("true"))
    await environment().run(ProcessingActivities(engine, objects, host.proxy).process_execution, spec)
    assert stored(engine, objects, spec).header.paths == ()


async def test_targets_name_the_call_that_arrived_first(process, record_call, engine, objects, make_spec, make_task):
    spec = make_spec(make_task("true"))
    record_call(spec, 0, [1], [2, 3])
    record_call(spec, 1, [1, 2], [3, 4])  # generates 3 again after the same ids, then goes on
    await process(spec)
    kept = stored(engine, objects, spec)
    assert [span.call for span in kept.header.paths[0].spans] == ["0-0", "0-1"]
    assert kept.ids.tolist() == [1, 2, 3, 4]

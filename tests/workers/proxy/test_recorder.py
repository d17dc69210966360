"""The recorder: durable when it says so, in order, and one bad write harms no other."""

import asyncio
import threading

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from infra.records import schema
from workers.proxy import rows
from workers.proxy.recorder import Recorder


@pytest.fixture
def recorder(database):
    recorder = Recorder(database)
    yield recorder
    recorder.close()


def boot(component):
    row = {"component": component, "boot_epoch": 1, "booted_at": 0.0, "pid": 1}
    return lambda connection: connection.execute(insert(schema.boots).values(row)) and None


def components(database):
    with database.connect() as connection:
        return [row.component for row in connection.execute(select(schema.boots))]


async def test_a_write_is_durable_when_it_returns(recorder, database):
    await recorder.write(boot("a"))
    assert components(database) == ["a"]
    for name in "bcd":
        recorder.post(boot(name))
    await recorder.flush()
    assert components(database) == ["a", "b", "c", "d"]


async def test_one_bad_write_harms_no_other(recorder, database):
    results = await asyncio.gather(
        *(recorder.write(boot(name)) for name in ("a", "b", "a", "c")), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), type(None), IntegrityError, type(None)]
    assert sorted(components(database)) == ["a", "b", "c"]


async def test_many_writes_share_a_commit(recorder, database):
    begun, asked = [], threading.Event()
    begin = database.begin
    recorder._database = type("Counted", (), {"begin": lambda self: begun.append(asked.wait(120)) or begin()})()
    writes = [asyncio.create_task(recorder.write(boot(str(number)))) for number in range(200)]
    await asyncio.sleep(0)
    asked.set()
    await asyncio.gather(*writes)
    assert len(components(database)) == 200
    assert len(begun) < 50


async def test_closing_writes_what_is_queued(database):
    recorder = Recorder(database)
    for number in range(20):
        recorder.post(boot(str(number)))
    await asyncio.to_thread(recorder.close)
    assert len(components(database)) == 20


async def test_routes_are_put_moved_and_removed(recorder, database):
    await recorder.write(rows.put_routes({"e": "cell-0", "f": "cell-0"}))
    await recorder.write(rows.put_routes({"e": "cell-1", "f": ""}))
    with database.connect() as connection:
        assert [(row.execution, row.engine) for row in connection.execute(select(schema.routes))] == [("e", "cell-1")]

"""The whole suite: fast tests first, so that a plain mistake is seen before minutes of slow tests.

Property tests take the same examples every time and have no time limit of their own, so that a busy machine changes
nothing. `pytest --hypothesis-profile=explore` looks further.
"""

import atexit
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from tests.postgresql import PostgreSQL

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", settings.get_profile("steady"), derandomize=False, max_examples=500)
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(scope="session")
def postgresql() -> "Iterator[PostgreSQL]":
    """A PostgreSQL server, started when the first test asks for it."""
    from tests.postgresql import running_server

    with running_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path) -> Iterator[str]:
    """URL of a database of this test's own, on each of the two kinds."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'records.db'}"
        return
    server = request.getfixturevalue("postgresql")
    url = server.new_database()
    yield url
    server.drop(url)


@pytest.fixture
def database(database_url: str) -> "Iterator[Engine]":
    """That database, with the tables of a run."""
    from infra.records.database import open_database

    engine = open_database(database_url, create=True)
    yield engine
    engine.dispose()


def pytest_unconfigure():
    """pytest's closing line stays the last one: some library's bindings print notes when the interpreter ends, which is
    after pytest has given the real standard error back."""
    atexit.register(_silence_standard_error)


def _silence_standard_error() -> None:
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

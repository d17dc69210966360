"""The sound synthetic run, built once and copied for every planted fault."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.audit.recording import SyntheticRun
from tests.infra.audit.synthetic import build


@pytest.fixture(scope="session")
def sound_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "run"
    build(folder).engine.dispose()
    return folder


@pytest.fixture(scope="session")
def sound_on_postgresql(tmp_path_factory: pytest.TempPathFactory, postgresql) -> tuple[Path, str]:
    """The sound run with its records in PostgreSQL: its folder and its database."""
    folder, url = tmp_path_factory.mktemp("sound") / "run", postgresql.new_database()
    build(folder, url).engine.dispose()
    return folder, url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def recorded(request: pytest.FixtureRequest, sound_folder: Path, tmp_path: Path) -> Iterator[SyntheticRun]:
    """A copy of the sound run that the test may damage, on each kind of database."""
    if request.param == "postgresql":
        source, sound = request.getfixturevalue("sound_on_postgresql")
        url = request.getfixturevalue("postgresql").new_database(like=sound)
    else:
        source, url = sound_folder, ""
    shutil.copytree(source, tmp_path / "run")
    run = SyntheticRun.open(tmp_path / "run", url)
    yield run
    run.engine.dispose()
    if url:
        request.getfixturevalue("postgresql").drop(url)

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


@pytest.fixture
def recorded(sound_folder: Path, tmp_path: Path) -> Iterator[SyntheticRun]:
    """A copy of the sound run that the test may damage."""
    shutil.copytree(sound_folder, tmp_path / "run")
    run = SyntheticRun.open(tmp_path / "run")
    yield run
    run.engine.dispose()

"""Real runners on real commands, in a folder that is swept of processes afterwards."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.processes.job import Job
from infra.processes.launch import Runners, end_marked
from infra.processes.limits import ProcessLimits

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def runners() -> Runners:
    return Runners(CHECKOUT, poll_seconds=0.02)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Makes a job that runs a shell script in `tmp_path`."""

    def make(script: str, *, argv: tuple[str, ...] | None = None, env: dict[str, str] | None = None, **limits) -> Job:
        values = {"wall_seconds": 200.0, "grace_seconds": 0.3, **limits}
        return Job(
            argv=argv or ("/bin/sh", "-c", script),
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", **(env or {})},
            cwd=str(tmp_path),
            marker=str(tmp_path),
            limits=ProcessLimits(**values),
        )

    yield make
    assert end_marked(str(tmp_path)) == 0

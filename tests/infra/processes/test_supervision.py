"""Cases 36 (the limit side), 48 and 49: every way a command can end, linger or flood."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from infra.ports import free_ports
from infra.processes.identity import ProcessIdentity, read_stat
from infra.processes.job import Started
from infra.processes.launch import end_marked, running
from infra.processes.tree import all_pids, living, marked

TRAP_SECONDS = 4.0
"""A wall limit by which a shell has set its traps, however busy the machine."""


async def run(runners, folder: Path, job):
    runners.start(folder, job)
    return await runners.follow(folder)


async def until(condition, seconds: float = 120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition never came true"
        await asyncio.sleep(0.02)


def zombies_below(pid: int) -> list[int]:
    return [p for p in all_pids() if (s := read_stat(p)) is not None and s.dead and s.parent == pid]


async def test_exit_code_and_output(runners, shell, tmp_path):
    result = await run(runners, tmp_path / "run", shell("echo out; echo err >&2; exit 3"))
    assert (result.end, result.exit_code, result.left_over, result.survivors) == ("exited", 3, 0, 0)
    assert (tmp_path / "run/stdout.log").read_text() == "out\n"
    assert (tmp_path / "run/stderr.log").read_text() == "err\n"


async def test_killed_command_reports_its_signal(runners, shell, tmp_path):
    result = await run(runners, tmp_path / "run", shell("kill -9 $$"))
    assert (result.end, result.exit_code) == ("exited", -9)


async def test_a_command_that_cannot_be_started_says_why(runners, shell, tmp_path):
    result = await run(runners, tmp_path / "run", shell("", argv=("no-such-harness",)))
    assert result.end == "unstartable"
    assert "no-such-harness" in result.detail


async def test_the_job_file_is_private(runners, shell, tmp_path):
    await run(runners, tmp_path / "run", shell("true"))
    assert (tmp_path / "run/job.json").stat().st_mode & 0o077 == 0
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0


async def test_wall_limit_ends_one_that_ignores_term(runners, shell, tmp_path):
    job = shell("trap '' TERM; while :; do sleep 0.05; done", wall_seconds=TRAP_SECONDS)
    result = await run(runners, tmp_path / "run", job)
    assert (result.end, result.exit_code, result.survivors) == ("wall_limit", -9, 0)
    assert living(marked(str(tmp_path))) == []


async def test_term_comes_before_kill(runners, shell, tmp_path):
    job = shell(
        "trap 'echo saved > saved; exit 0' TERM; while :; do sleep 0.05; done",
        wall_seconds=TRAP_SECONDS,
        grace_seconds=120,
    )
    result = await run(runners, tmp_path / "run", job)
    assert (result.end, result.exit_code) == ("wall_limit", 0)
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    "script",
    [
        "sleep 1000 &",
        "setsid nohup sh -c 'yes > flood' >/dev/null 2>&1 &",
        "(setsid sh -c 'sleep 1000 & touch forked; exit 0' &) ; until [ -e forked ]; do sleep 0.02; done; exit 0",
        "setsid sh -c \"trap '' TERM HUP; while :; do date > late; sleep 0.05; done\" &",
        "setsid env -i /bin/sh -c 'sleep 1000' >/dev/null 2>&1 </dev/null &",
    ],
    ids=["background with open stdout", "setsid nohup flood", "double fork", "late writer ignores TERM", "no marker"],
)
async def test_nothing_of_a_command_outlives_it(runners, shell, tmp_path, script):
    result = await run(runners, tmp_path / "run", shell(f"{script}\nsleep 0.1; echo done"))
    assert (result.end, result.exit_code, result.survivors) == ("exited", 0, 0)
    assert result.left_over >= 1
    assert living(marked(str(tmp_path))) == []
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    await asyncio.sleep(0.15)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


async def test_orphans_are_reaped_while_the_command_runs(runners, shell, tmp_path):
    script = "for i in 1 2 3 4 5 6 7 8; do (sh -c 'true' &) ; done; sleep 0.3; touch ready; sleep 1000"
    folder = tmp_path / "run"
    runners.start(folder, shell(script))
    await until(lambda: (tmp_path / "ready").exists() and running(folder) is not None)
    runner = running(folder)
    assert runner is not None
    await until(lambda: zombies_below(runner.pid) == [])
    result = await runners.stop(folder, marker=str(tmp_path), grace_seconds=1)
    assert result.end == "cancelled"
    assert not runner.alive()


async def test_port_is_free_for_the_next_run(runners, shell, tmp_path):
    (port,) = free_ports(1)  # none that an outgoing connection could take meanwhile
    program = (
        f"import socket,os,time; s=socket.socket(); s.bind(('127.0.0.1',{port})); s.listen();"
        "os.fork() and os._exit(0); os.setsid(); time.sleep(100)"
    )
    for number in range(2):
        result = await run(runners, tmp_path / f"run-{number}", shell("", argv=(sys.executable, "-S", "-c", program)))
        assert (result.end, result.exit_code, result.left_over) == ("exited", 0, 1)


async def test_process_limit(runners, shell, tmp_path):
    script = "i=0; while [ $i -lt 30 ]; do sleep 100 & i=$((i+1)); done; wait"
    result = await run(runners, tmp_path / "run", shell(script, processes=10))
    assert (result.end, result.survivors) == ("process_limit", 0)


async def test_memory_of_the_whole_tree_is_limited(runners, shell, tmp_path):
    one = f"{sys.executable} -S -c 'b=bytearray(40<<20); import time; time.sleep(100)'"
    result = await run(runners, tmp_path / "run", shell(f"{one} & {one} & {one} & wait", memory_bytes=100 << 20))
    assert (result.end, result.survivors) == ("memory_limit", 0)


async def test_one_process_cannot_take_more_than_the_memory_limit(runners, shell, tmp_path):
    argv = (sys.executable, "-S", "-c", "b = bytearray(1 << 30)")
    result = await run(runners, tmp_path / "run", shell("", argv=argv, memory_bytes=200 << 20))
    assert (result.end, result.exit_code) == ("exited", 1)
    assert "MemoryError" in (tmp_path / "run/stderr.log").read_text()


async def test_largest_file_is_limited(runners, shell, tmp_path):
    result = await run(runners, tmp_path / "run", shell("exec head -c 3000000 /dev/zero > big", file_bytes=1 << 20))
    assert result.exit_code == -signal.SIGXFSZ
    assert (tmp_path / "big").stat().st_size == 1 << 20


async def test_output_of_any_kind_is_kept_as_bounded_text(runners, shell, tmp_path):
    script = "printf 'a\\360\\000b\\n'; head -c 5000000 /dev/urandom; echo; echo the end"
    result = await run(runners, tmp_path / "run", shell(script, output_bytes=20_000))
    text = (tmp_path / "run/stdout.log").read_bytes().decode("utf-8")
    assert text.startswith("a\ufffd\ufffdb\n")
    assert text.endswith("\nthe end\n")
    assert f"[... {result.stdout_dropped} bytes of output dropped ...]" in text
    assert result.stdout_bytes == 5 + 5_000_000 + 9
    assert result.stdout_dropped == result.stdout_bytes - 10_000
    assert len(text) < 11_000
    assert "\0" not in text


async def test_stderr_flood_with_quiet_stdout(runners, shell, tmp_path):
    result = await run(runners, tmp_path / "run", shell("yes | head -c 3000000 >&2; echo ok", output_bytes=1000))
    assert (result.exit_code, result.stderr_bytes, result.stdout_dropped) == (0, 3_000_000, 0)
    assert (tmp_path / "run/stdout.log").read_text() == "ok\n"
    assert (tmp_path / "run/stderr.log").stat().st_size < 1200


async def test_another_worker_follows_a_run_it_did_not_start(runners, shell, tmp_path):
    folder = tmp_path / "run"
    job = shell("echo once >> starts; while [ ! -e go ]; do sleep 0.02; done")
    runners.start(folder, job)
    await until(lambda: (tmp_path / "starts").exists())
    again = type(runners)(runners.checkout, poll_seconds=0.02)
    again.start(folder, job)
    again.spawn(folder)
    (tmp_path / "go").touch()
    assert (await again.follow(folder)).end == "exited"
    assert (tmp_path / "starts").read_text() == "once\n"
    await until(lambda: not runners.reap() and not runners._children and not again.reap() and not again._children)


async def test_a_lost_runner_is_noticed_and_what_it_left_is_ended(runners, shell, tmp_path):
    folder = tmp_path / "run"
    runners.start(folder, shell("touch ready; sleep 1000"))
    await until(lambda: (tmp_path / "ready").exists() and running(folder) is not None)
    runner = running(folder)
    assert runner is not None
    assert runner.send(signal.SIGKILL)
    assert (await runners.follow(folder)).end == "runner_lost"
    await until(lambda: len(living(marked(str(tmp_path)))) >= 1)  # a process that becomes another has no marker to see
    assert end_marked(str(tmp_path)) == 0
    runners.spawn(folder)  # a lost run is never started again in the same folder
    await asyncio.sleep(0.3)
    assert living(marked(str(tmp_path))) == []


async def test_stop_before_the_runner_got_round_to_it(runners, shell, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    assert (await runners.stop(folder, marker=str(tmp_path), grace_seconds=0.1)).end == "cancelled"
    runners.start(folder, shell("touch ran"))
    await asyncio.sleep(0.2)
    assert not (tmp_path / "ran").exists()


async def test_a_used_pid_is_not_taken_for_the_old_process(runners, shell, tmp_path):
    folder = tmp_path / "run"
    runners.start(folder, shell("touch ready; sleep 1000"))
    await until(lambda: (tmp_path / "ready").exists() and Started.load(folder) is not None)
    started = Started.load(folder)
    assert started is not None
    assert started.command is not None
    stranger = ProcessIdentity(os.getpid(), started.command.start_ticks, started.command.boot)
    assert not stranger.alive()
    assert not stranger.send(signal.SIGTERM)
    await runners.stop(folder, marker=str(tmp_path), grace_seconds=0.2)
    assert not started.command.alive()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_500_orphans_and_a_bounded_fork_storm(runners, shell, tmp_path):
    orphans = "i=0; while [ $i -lt 500 ]; do (setsid sleep 1000 &) ; i=$((i+1)); done; sleep 0.2"
    result = await run(runners, tmp_path / "run", shell(orphans))
    assert (result.end, result.left_over, result.survivors) == ("exited", 500, 0)
    storm = "f() { [ $1 -gt 0 ] || exec sleep 100; f $(($1 - 1)) & f $(($1 - 1)) & wait; }; f 9"
    result = await run(runners, tmp_path / "storm", shell(storm, processes=50))
    assert (result.end, result.survivors) == ("process_limit", 0)
    assert living(marked(str(tmp_path))) == []


@pytest.mark.slow
@pytest.mark.timeout(1000)
async def test_two_gigabytes_of_output_and_one_endless_line(runners, shell, tmp_path):
    folder = tmp_path / "run"
    runners.start(folder, shell("yes | head -c 2147483648; head -c 100000000 /dev/zero | tr '\\0' x", wall_seconds=900))
    peak = 0
    while running(folder) or not (folder / "result.json").exists():
        runner = running(folder)
        stat = read_stat(runner.pid) if runner else None
        peak = max(peak, stat.resident_pages * os.sysconf("SC_PAGE_SIZE") if stat else 0)
        await asyncio.sleep(0.1)
    result = await runners.follow(folder)
    assert (result.exit_code, result.stdout_bytes) == (0, 2147483648 + 100_000_000)
    assert (folder / "stdout.log").stat().st_size < 1_000_200
    assert 0 < peak < 64 << 20

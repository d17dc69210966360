"""A harness' life on its host: cases 36 (the limit side), 47, 48, 49 and 60, with real processes."""

import asyncio
import dataclasses
import json
import signal
import time
from pathlib import Path

import pytest
from temporalio.activity import ActivityCancellationDetails

from activities.endings import without_secret
from activities.harness import HarnessActivities
from harness_adapters.generic import GenericCommand
from harness_adapters.protocol import HarnessOutcome
from infra.processes.launch import running
from infra.processes.tree import living, marked
from infra.records.executions import execution_of
from infra.records.schema import executions
from infra.workspaces import token_sha256
from workflows.messages.errors import Fenced, HarnessUnusable, InvalidTask
from workflows.messages.execution import EndReason, Evaluation, FinishExecution, HarnessRun, Outcome

REWARD = 'echo {} > "$GYRE_LOGS_DIR/verifier/reward.txt"'


async def until(condition, seconds: float = 120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition never came true"
        await asyncio.sleep(0.02)


async def live(host, environment, spec):
    """Prepare and run; returns the HarnessRun."""
    await environment().run(host.harness.prepare_workspace, spec)
    return await environment().run(host.harness.run_harness, spec)


async def test_prepare_is_idempotent_and_keeps_secrets(host, environment, make_task, make_spec):
    spec = make_spec(make_task("true"))
    prepared = await environment().run(host.harness.prepare_workspace, spec)
    folder = host.folder(spec)
    (folder.app / "mine").write_text("kept")
    token = folder.token.read_text()
    assert await environment().run(host.harness.prepare_workspace, spec) == prepared
    assert folder.token.read_text() == token
    assert (folder.app / "mine").exists()
    assert sorted(path.name for path in folder.app.iterdir()) == ["mine", "start.txt"]
    assert len(token) >= 43
    assert folder.token.stat().st_mode & 0o777 == 0o600
    assert folder.private.stat().st_mode & 0o077 == 0
    row = host.records.get(execution_of(spec))
    assert row is not None
    assert (row.state, row.attempt, row.token_sha256) == ("open", 1, token_sha256(token))
    assert [one.token_sha256 for one in host.proxy.registered] == [token_sha256(token)] * 2
    assert token not in prepared.model_dump_json()


async def test_a_task_that_needs_a_container_is_refused(host, environment, make_task, make_spec):
    task = make_task("true", files={"Dockerfile": "FROM scratch"})
    with pytest.raises(InvalidTask, match="container runtime"):
        await environment().run(host.harness.prepare_workspace, make_spec(task))
    assert host.proxy.registered == []


async def test_a_harness_that_is_not_there_is_refused(host, environment, make_task, make_spec):
    spec = make_spec(make_task("true"))
    choice = spec.harness.model_copy(update={"settings": {"command": "no-such-command"}})
    with pytest.raises(HarnessUnusable):
        await environment().run(host.harness.prepare_workspace, spec.model_copy(update={"harness": choice}))


async def test_run_ends_as_the_harness_says(host, environment, make_task, make_spec):
    task = make_task("true")
    run = await live(host, environment, make_spec(task, "cat $GYRE_INSTRUCTION_FILE > done; exit 0"))
    assert (run.end, run.exit_code) == (EndReason.SUBMITTED, 0)
    assert (host.folder(make_spec(task)).app / "done").read_text() == "Do it.\n"
    run = await live(host, environment, make_spec(task, "exit 7", member=1))
    assert (run.end, run.exit_code) == (EndReason.CRASHED, 7)
    run = await live(host, environment, make_spec(task, "kill -9 $$", member=2))
    assert (run.end, run.exit_code) == (EndReason.CRASHED, -9)


async def test_the_harness_sees_its_own_endpoint_and_token_and_nothing_of_ours(
    host, environment, make_task, make_spec, monkeypatch
):
    monkeypatch.setenv("TEMPORAL_API_KEY", "secret")
    spec = make_spec(make_task("true"), "env > $GYRE_WORKSPACE/env")
    await live(host, environment, spec)
    seen = dict(line.split("=", 1) for line in (host.folder(spec).app / "env").read_text().splitlines() if "=" in line)
    token = host.folder(spec).token.read_text()
    assert (seen["OPENAI_BASE_URL"], seen["OPENAI_API_KEY"]) == (f"http://127.0.0.1:9/x/{token}/v1", token)
    assert "TEMPORAL_API_KEY" not in seen


async def test_wall_limit_keeps_the_work(host, environment, make_task, make_spec):
    grader = f'grep -q right answer && cmp -s raw "$GYRE_TESTS_DIR/raw" && {REWARD.format(1)}'
    task = make_task(grader)
    (task / "tests/raw").write_bytes(b"\0\xff no newline")
    script = (
        "echo right > answer; printf '\\000\\377 no newline' > raw; printf half > file; while :; do sleep 0.1; done"
    )
    spec = make_spec(task, script, wall_seconds=4)
    run = await live(host, environment, spec)
    assert run.end is EndReason.WALL_LIMIT
    assert living(marked(str(host.folder(spec).root))) == []
    evaluation = await environment().run(host.evaluation.evaluate_workspace, spec)
    assert (evaluation.outcome, evaluation.reward) == (Outcome.SCORED, 1.0)


async def test_background_writer_is_gone_before_grading(host, environment, make_task, make_spec):
    grader = f'before=$(cat answer); sleep 0.3; test "$before" = "$(cat answer)" && {REWARD.format(1)}'
    writer = (
        "setsid sh -c 'trap \"\" TERM; while :; do date +%N > answer; sleep 0.05; done' >/dev/null 2>&1 & sleep 0.3"
    )
    spec = make_spec(make_task(grader), writer)
    run = await live(host, environment, spec)
    assert run.end is EndReason.SUBMITTED
    assert "background" in run.detail
    evaluation = await environment().run(host.evaluation.evaluate_workspace, spec)
    assert evaluation.reward == 1.0


async def test_a_restarted_host_takes_up_the_living_harness(new_host, environment, make_task, make_spec):
    first = new_host()
    spec = make_spec(make_task("true"), "echo x >> starts; while [ ! -e go ]; do sleep 0.02; done")
    await environment().run(first.harness.prepare_workspace, spec)
    attempt = environment()
    watching = asyncio.create_task(attempt.run(first.harness.run_harness, spec))
    folder = first.folder(spec)
    await until(lambda: (folder.app / "starts").exists() and running(folder.run(1)) is not None)
    attempt.cancel(ActivityCancellationDetails(worker_shutdown=True))
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert running(folder.run(1)) is not None
    second = new_host()
    watching = asyncio.create_task(environment().run(second.harness.run_harness, spec))
    await asyncio.sleep(0.1)
    (folder.app / "go").touch()
    assert (await watching).end is EndReason.SUBMITTED
    assert (folder.app / "starts").read_text() == "x\n"
    # And once more, as if the report had been lost: the result on disk is the answer.
    assert (await environment().run(second.harness.run_harness, spec)).end is EndReason.SUBMITTED
    assert (folder.app / "starts").read_text() == "x\n"


async def test_cancellation_ends_the_harness(host, environment, make_task, make_spec):
    spec = make_spec(make_task("true"), "trap '' TERM; touch ready; while :; do sleep 0.05; done")
    await environment().run(host.harness.prepare_workspace, spec)
    attempt = environment()
    watching = asyncio.create_task(attempt.run(host.harness.run_harness, spec))
    await until(lambda: (host.folder(spec).app / "ready").exists())
    attempt.cancel(ActivityCancellationDetails(cancel_requested=True))
    run = await watching
    assert run.end is EndReason.CANCELLED
    assert living(marked(str(host.folder(spec).root))) == []


async def kill_runner(host, spec) -> None:
    folder = host.folder(spec)
    await until(lambda: (folder.app / "starts").exists() and running(folder.run(1)) is not None)
    runner = running(folder.run(1))
    assert runner is not None
    runner.send(signal.SIGKILL)


async def test_lost_before_the_first_call_starts_afresh(host, environment, make_task, make_spec):
    spec = make_spec(
        make_task("true"), "ls > starts; if [ -e $HOME/../again ]; then exit 0; fi; touch waits; sleep 1000"
    )
    await environment().run(host.harness.prepare_workspace, spec)
    watching = asyncio.create_task(environment().run(host.harness.run_harness, spec))
    folder = host.folder(spec)
    await until(lambda: (folder.app / "waits").exists())
    (folder.app / "leftover").touch()
    (folder.root / "again").touch()
    await kill_runner(host, spec)
    assert (await watching).end is EndReason.SUBMITTED
    assert "leftover" not in (folder.app / "starts").read_text()
    assert [one.attempt for one in host.proxy.registered] == [1, 2]
    row = host.records.get(execution_of(spec))
    assert row is not None
    assert row.attempt == 2


async def test_lost_after_the_first_call_is_scored_as_it_stands(host, engine, environment, make_task, make_spec):
    spec = make_spec(make_task(f"test -e starts && {REWARD.format(0.3)}"), "touch starts; sleep 1000")
    await environment().run(host.harness.prepare_workspace, spec)
    with engine.begin() as connection:
        connection.execute(executions.update().values(first_call_at=time.time(), model_calls=2))
    watching = asyncio.create_task(environment().run(host.harness.run_harness, spec))
    await kill_runner(host, spec)
    run = await watching
    assert (run.end, run.model_calls) == (EndReason.CRASHED, 2)
    assert living(marked(str(host.folder(spec).root))) == []
    assert (await environment().run(host.harness.run_harness, spec)).end is EndReason.CRASHED
    evaluation = await environment().run(host.evaluation.evaluate_workspace, spec)
    assert evaluation.reward == 0.3


async def test_any_output_leaves_a_small_clean_report(host, environment, make_task, make_spec):
    spec = make_spec(
        make_task("true"), "head -c 3000000 /dev/urandom; printf '\\000\\377' >&2; exit 1", output_bytes=10_000
    )
    run = await live(host, environment, spec)
    assert len(json.dumps(run.model_dump(mode="json"))) < 3000
    log = host.folder(spec).run(1) / "stdout.log"
    assert "\0" not in log.read_bytes().decode("utf-8")
    assert log.stat().st_size < 35_000


async def test_finish_closes_once(host, environment, make_task, make_spec):
    spec = make_spec(make_task("true"))
    run = await live(host, environment, spec)
    request = FinishExecution(spec=spec, run=run, evaluation=Evaluation(outcome=Outcome.SCORED, reward=0.5))
    await environment().run(host.harness.finish_execution, request)
    late = request.model_copy(update={"evaluation": Evaluation(outcome=Outcome.SCORED, reward=1.0)})
    await environment().run(host.harness.finish_execution, late)
    row = host.records.get(execution_of(spec))
    assert row is not None
    assert (row.state, row.outcome, row.reward, row.end_reason) == ("closed", "scored", 0.5, "submitted")
    assert host.proxy.closed == [execution_of(spec)] * 3
    secrets = host.folder(spec).private
    assert not host.folder(spec).token.exists()
    assert list(secrets.glob("run-*/job.json")) == []
    for activity in (host.harness.prepare_workspace, host.harness.run_harness):
        with pytest.raises(Fenced):
            await environment().run(activity, spec)


async def test_finish_of_one_that_never_ran_and_of_one_that_still_runs(host, environment, make_task, make_spec):
    task = make_task("true")
    never = FinishExecution(
        spec=make_spec(task),
        run=HarnessRun(end=EndReason.NEVER_RAN),
        evaluation=Evaluation(outcome=Outcome.NO_ARTIFACT, detail="no image"),
    )
    await environment().run(host.harness.finish_execution, never)
    row = host.records.get(execution_of(never.spec))
    assert row is not None
    assert (row.end_reason, row.outcome, row.reward) == ("never_ran", "no_artifact", None)
    spec = make_spec(task, "touch ready; sleep 1000", member=1)
    await environment().run(host.harness.prepare_workspace, spec)
    attempt = environment()
    watching = asyncio.create_task(attempt.run(host.harness.run_harness, spec))
    folder = host.folder(spec)
    await until(lambda: (folder.app / "ready").exists() and running(folder.run(1)) is not None)
    attempt.cancel(ActivityCancellationDetails(not_found=True))  # the workflow was terminated
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert running(host.folder(spec).run(1)) is not None
    await environment().run(host.harness.finish_execution, never.model_copy(update={"spec": spec}))
    assert living(marked(str(host.folder(spec).root))) == []


def test_a_launch_file_stays_in_the_home(tmp_path: Path):
    from infra.workspaces import ExecutionFolder

    folder = ExecutionFolder(tmp_path / "x")
    folder.make()
    folder.write_home("a/b.txt", "text")
    assert (folder.home / "a/b.txt").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="not inside"):
        folder.write_home("../app/evil", "text")


@pytest.mark.parametrize("keep", [True, False])
async def test_a_closed_workspace_is_kept_or_removed(host, environment, make_task, make_spec, keep):
    spec = make_spec(make_task("true"), "echo made > file.txt")
    harness = HarnessActivities(dataclasses.replace(host.harness._host, keep_workspaces=keep))
    await environment().run(harness.prepare_workspace, spec)
    run = await environment().run(harness.run_harness, spec)
    scored = Evaluation(outcome=Outcome.SCORED, reward=1.0)
    await environment().run(harness.finish_execution, FinishExecution(spec=spec, run=run, evaluation=scored))
    assert host.folder(spec).root.exists() == keep
    assert (host.folder(spec).app / "file.txt").exists() == keep


async def test_a_harness_that_quotes_its_endpoint_gives_no_secret_away(host, environment, make_task, make_spec):
    class Talkative(GenericCommand):
        def outcome(self, context, exit_code):
            return HarnessOutcome(end=EndReason.CRASHED, detail=f"401 at {context.endpoint}/v1 with {context.token}")

    host.harness._host = dataclasses.replace(host.harness._host, adapter=lambda name: Talkative())
    spec = make_spec(make_task("true"))
    run = await live(host, environment, spec)
    token = host.folder(spec).token.read_text()
    assert run.end is EndReason.CRASHED
    assert run.detail == "401 at http://127.0.0.1:9/x/<secret>/v1 with <secret>"
    assert token not in run.model_dump_json()


async def test_an_end_that_cannot_be_read_is_a_crash_and_not_tried_for_ever(host, environment, make_task, make_spec):
    class Confused(GenericCommand):
        def outcome(self, context, exit_code):
            return HarnessOutcome(end=[][0])

    host.harness._host = dataclasses.replace(host.harness._host, adapter=lambda name: Confused())
    run = await live(host, environment, make_spec(make_task("true")))
    assert (run.end, run.detail) == (EndReason.CRASHED, "what it left cannot be read: IndexError")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at /x/abcdefghij/v1", "at /x/<secret>/v1"),
        ("abcdefghij abcdefghij", "<secret> <secret>"),
        ("cut off in abcdefgh", "cut off in <secret>"),
        ("cut off in abcdefgh…", "cut off in <secret>"),
        ("no abc", "no abc"),
        ("goes on…", "goes on…"),
        ("", ""),
    ],
)
def test_a_secret_is_blotted_out_also_where_the_text_was_cut(text, shown):
    assert without_secret(text, "abcdefghij") == shown
    assert without_secret(text, "") == text

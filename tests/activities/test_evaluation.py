"""Cases 45, 47, 51 and 60: what a grading can end in, with real graders."""

import asyncio
import os
import shlex
import signal
import time
from pathlib import Path

import pytest
from temporalio.activity import ActivityCancellationDetails

from activities.endings import harness_run
from activities.evaluation import EvaluationActivities, marked_evaluator
from harness_adapters.protocol import HarnessOutcome
from infra.processes.isolation import isolation_here
from infra.processes.job import Result
from infra.processes.launch import running
from infra.processes.tree import living, marked
from infra.records.executions import execution_of
from infra.workspaces import folder_sha256
from workflows.messages.errors import EvaluatorFailure
from workflows.messages.execution import EndReason, Outcome

REWARD = 'echo {} > "$GYRE_LOGS_DIR/verifier/reward.txt"'


@pytest.fixture
def graded(host, environment, make_task, make_spec):
    """Runs a harness script, then grades up to `attempts` times like Temporal would; returns what came of it."""

    async def run(test: str, script: str = "true", attempts: int = 2, **limits):
        spec = make_spec(make_task(test), script, evaluator_attempts=attempts, **limits)
        await environment().run(host.harness.prepare_workspace, spec)
        await environment().run(host.harness.run_harness, spec)
        for _ in range(attempts - 1):
            try:
                return spec, await environment().run(host.evaluation.evaluate_workspace, spec)
            except EvaluatorFailure:
                continue
        return spec, await environment().run(host.evaluation.evaluate_workspace, spec)

    return run


@pytest.mark.parametrize("reward", [0, 0.3, 1])
async def test_a_reward_is_kept(graded, host, reward):
    spec, evaluation = await graded(REWARD.format(reward))
    assert (evaluation.outcome, evaluation.reward) == (Outcome.SCORED, reward)
    row = host.records.get(execution_of(spec))
    assert (row.outcome, row.reward) == ("scored", reward)


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("exit 0", "neither"),
        (f"{REWARD.format(1)}; sleep 1000", "wall limit"),
        (f"{REWARD.format(1)}; kill -9 $$", "signal 9"),
        (REWARD.format("nan"), "no single number"),
        (REWARD.format("1.5"), "lie in"),
        (REWARD.format('""'), "no single number"),
        (REWARD.format("true"), "no single number"),
        (REWARD.format('"1\n0"'), "no single number"),
    ],
    ids=["no file", "time out after a reward", "killed", "nan", "1.5", "empty", "true", "two lines"],
)
async def test_a_failure_of_the_grader_is_no_reward(graded, host, test, words):
    spec, evaluation = await graded(test, evaluator_seconds=0.5 if words == "wall limit" else 200)
    assert evaluation.outcome is Outcome.EVALUATOR_FAILED
    assert evaluation.reward is None
    assert "failed 2 times" in evaluation.detail
    assert words.replace(" ", "_") in evaluation.detail.replace(" ", "_")
    row = host.records.get(execution_of(spec))
    assert (row.outcome, row.reward) == ("evaluator_failed", None)
    assert len(list(host.folder(spec).private.glob("grading-*"))) == 2


async def test_failing_tests_that_wrote_a_reward_are_a_score(graded):
    _, evaluation = await graded(f"{REWARD.format(0)}; exit 1")
    assert (evaluation.outcome, evaluation.reward) == (Outcome.SCORED, 0.0)


@pytest.mark.parametrize(("script", "reward"), [("while :; do sleep 0.1; done", 1), ("exit 3", 0.3)])
async def test_how_the_agent_ended_does_not_matter(graded, script, reward):
    _, evaluation = await graded(REWARD.format(reward), script, wall_seconds=0.5)
    assert (evaluation.outcome, evaluation.reward) == (Outcome.SCORED, reward)


async def test_retries_begin_from_what_the_agent_left(graded, host):
    test = (
        f"if [ -e spoilt ] || ! ln -s /nowhere link 2>/dev/null; then {REWARD.format(0)}; exit; fi; "
        f"touch spoilt; {REWARD.format('oops')}"
    )
    script = "mkfifo pipe; ln -s target broken; mkdir closed; chmod 0 closed; echo mine > mine; rm start.txt"
    spec, evaluation = await graded(test, script, attempts=2)
    assert evaluation.outcome is Outcome.EVALUATOR_FAILED
    left = {path.name for path in host.folder(spec).pristine.iterdir()}
    assert left == {"pipe", "broken", "closed", "mine"}


async def test_tests_are_not_in_the_workspace_while_the_agent_runs_nor_its_environment_in_the_tests(graded, host):
    test = (
        'test -z "$OPENAI_API_KEY" && test ! -e "$HOME/instruction.md" && test -f "$GYRE_TESTS_DIR/test.sh" && '
        + REWARD.format(1)
    )
    script = 'find "$GYRE_WORKSPACE/.." -name "test.sh" > found; echo "exit 1" > test.sh'
    spec, evaluation = await graded(test, script)
    assert evaluation.reward == 1.0
    assert (host.folder(spec).app / "found").read_text() == ""


HERE = isolation_here()


@pytest.mark.skipif(not HERE.files, reason=f"no sandbox here: {HERE.reason}")
async def test_what_tests_run_of_the_agents_is_walled_in(
    host, environment, make_task, make_spec, monkeypatch, tmp_path
):
    """Tests import the agent's code: it reads no secret, writes nothing elsewhere, changes no test."""
    agents = (
        f"cat {tmp_path}/workspaces/*/*/*/private/token {tmp_path}/run/secrets.json > stolen 2>/dev/null; "
        f'touch {tmp_path}/written; echo "exit 0" > "$GYRE_TESTS_DIR/test.sh"; setsid sleep 600 & '
        'touch "$TMPDIR/mine" "$HOME/mine" mine'
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run/secrets.json").write_text("a secret")
    spec = make_spec(make_task(f"sh ./agents.sh; {REWARD.format(1)}"), f"echo {shlex.quote(agents)} > agents.sh")
    await environment().run(host.harness.prepare_workspace, spec)
    await environment().run(host.harness.run_harness, spec)
    walled = EvaluationActivities(
        host.records, host.workspaces, host.runners, isolation=HERE, hidden=(tmp_path / "run",)
    )
    evaluation = await environment().run(walled.evaluate_workspace, spec)
    folder = host.folder(spec)
    assert (evaluation.outcome, evaluation.reward) == (Outcome.SCORED, 1.0)
    assert (folder.app / "stolen").read_text() == ""
    assert (folder.app / "mine").exists()
    assert not (tmp_path / "written").exists()
    assert "agents.sh" in (folder.grading(1) / "tests/test.sh").read_text()
    assert living(marked(str(folder.grading(1)))) == []


async def test_no_workspace_and_no_start_are_no_artifact(host, environment, make_task, make_spec):
    spec = make_spec(make_task(REWARD.format(1)))
    evaluate = host.evaluation.evaluate_workspace
    assert (await environment().run(evaluate, spec)).outcome is Outcome.NO_ARTIFACT
    await environment().run(host.harness.prepare_workspace, spec)
    assert (await environment().run(evaluate, spec)).outcome is Outcome.NO_ARTIFACT


async def test_a_graded_result_is_never_computed_again(graded, host, environment):
    spec, evaluation = await graded(f'echo x >> "$HOME/../../count"; {REWARD.format(1)}')
    assert evaluation.reward == 1.0
    again = await environment().run(host.evaluation.evaluate_workspace, spec)
    assert again.model_copy(update={"seconds": 0.0}) == evaluation.model_copy(update={"seconds": 0.0})
    assert (host.folder(spec).private / "count").read_text() == "x\n"


async def test_the_tests_that_gave_a_reward_are_named(graded, host):
    """By their hash from before they ran: what a run leaves beside them does not count."""
    spec, evaluation = await graded(f'touch "$GYRE_TESTS_DIR/left"; {REWARD.format(1)}')
    row = host.records.get(execution_of(spec))
    assert row.evaluator == evaluation.evaluator == folder_sha256(Path(spec.task) / "tests")


async def started_grading(host, environment, make_task, make_spec, test):
    spec = make_spec(make_task(test))
    await environment().run(host.harness.prepare_workspace, spec)
    await environment().run(host.harness.run_harness, spec)
    attempt = environment()
    grading = asyncio.create_task(attempt.run(host.evaluation.evaluate_workspace, spec))
    deadline, folder = time.monotonic() + 120, host.folder(spec)
    while not (folder.private / "grading").exists() or running(folder.grading(1)) is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return spec, attempt, grading


async def test_a_restarted_host_takes_up_the_grading(new_host, environment, make_task, make_spec):
    host = new_host()
    test = f'echo x >> "$HOME/../../grading"; while [ ! -e go ]; do sleep 0.02; done; {REWARD.format(1)}'
    spec, attempt, grading = await started_grading(host, environment, make_task, make_spec, test)
    attempt.cancel(ActivityCancellationDetails(worker_shutdown=True))
    with pytest.raises(asyncio.CancelledError):
        await grading
    (host.folder(spec).app / "go").touch()
    evaluation = await environment().run(new_host().evaluation.evaluate_workspace, spec)
    assert evaluation.reward == 1.0
    assert (host.folder(spec).private / "grading").read_text() == "x\n"


async def test_cancelling_a_slow_grader_leaves_nothing_of_it(host, environment, make_task, make_spec):
    test = "trap '' TERM; touch \"$HOME/../../grading\"; setsid sleep 600 & sleep 600"
    spec, attempt, grading = await started_grading(host, environment, make_task, make_spec, test)
    folder = host.folder(spec).grading(1)
    attempt.cancel(ActivityCancellationDetails(cancel_requested=True))
    with pytest.raises(asyncio.CancelledError):
        await grading
    assert living(marked(str(folder))) == []


async def test_a_grading_whose_runner_was_killed_is_a_failure(host, environment, make_task, make_spec):
    test = 'touch "$HOME/../../grading"; sleep 600'
    spec, _, grading = await started_grading(host, environment, make_task, make_spec, test)
    folder = host.folder(spec).grading(1)
    runner = running(folder)
    runner.send(signal.SIGKILL)
    with pytest.raises(EvaluatorFailure, match="runner_lost"):
        await grading
    assert living(marked(str(folder))) == []


def test_ends_that_the_host_saw_outrank_the_harness():
    submitted = HarnessOutcome(end=EndReason.SUBMITTED)
    crashed = HarnessOutcome(end=EndReason.CRASHED, detail="why")
    for end, expected in [
        ("wall_limit", EndReason.WALL_LIMIT),
        ("cancelled", EndReason.CANCELLED),
        ("memory_limit", EndReason.CRASHED),
        ("unstartable", EndReason.NEVER_RAN),
        ("exited", EndReason.SUBMITTED),
    ]:
        assert harness_run(Result(end=end), submitted, model_calls=9, call_limit=9).end is expected
    assert harness_run(Result(end="exited"), crashed, model_calls=9, call_limit=9).end is EndReason.CALL_LIMIT
    run = harness_run(Result(end="exited", exit_code=1), crashed, model_calls=8, call_limit=9)
    assert (run.end, run.detail) == (EndReason.CRASHED, "why")


@pytest.mark.parametrize("kind", ["missing", "folder", "link", "fifo", "endless"])
def test_a_mark_that_is_no_mark_any_more_says_nothing(tmp_path, kind):
    mark = tmp_path / "evaluator.txt"
    match kind:
        case "folder":
            mark.mkdir()
        case "link":
            (tmp_path / "other").write_text("elsewhere")
            mark.symlink_to(tmp_path / "other")
        case "fifo":
            os.mkfifo(mark)
        case "endless":
            mark.write_text("f" * 10_000)
    assert marked_evaluator(tmp_path) == ""
    if kind == "missing":
        mark.write_text("ab" * 32)
        assert marked_evaluator(tmp_path) == "ab" * 32

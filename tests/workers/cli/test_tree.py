"""`gyre tree` and `gyre explain`, over a run recorded by the product's own code."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sqlalchemy import delete, select, update

from infra.records import schema
from tests.workers.cli.recorded import BATCH, Recorded
from workers.cli.explain import explain
from workers.cli.explain_facts import explain_execution
from workers.cli.tree import nearest, tree
from workflows.messages.errors import InvalidInput
from workflows.messages.execution import ProcessedExecution


@pytest.fixture
def run(tmp_path: Path):
    recorded = Recorded(tmp_path)
    yield recorded
    recorded.engine.dispose()


def test_a_tree_in_the_terminal(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    tree("first/0000/00", run_dir=run.folder)
    shown = capsys.readouterr().out
    assert "main · start · 2 calls, 0 to 1" in shown
    assert "main · edited history after" in shown
    assert "side · side call" in shown
    assert re.search(r"side calls are not trained", shown)
    assert re.search(r"path 1 · \d+ targets", shown)
    assert "candidate paths: 2" in shown
    assert "message nodes: 7" in shown  # system, user, answer, and per path another user and answer
    assert "expanded: 10" in shown


def test_every_call_is_listed_when_asked(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    tree(run.name(1), run_dir=run.folder, turns=True)
    assert re.search(r"1 · \d+ \+ \d+ tokens \(v2: 1, v3: \d+\) · path \d: \d+", capsys.readouterr().out)


def test_a_tree_as_json_adds_up(run, capsys):
    tree("first/0000/00", run_dir=run.folder, json_=True)
    shown = json.loads(capsys.readouterr().out)
    targets = sum(sum(call["trains"].values()) for branch in shown["branches"] for call in branch["calls"])
    said = sum(
        call["output_tokens"] for branch in shown["branches"] for call in branch["calls"] if call["role"] == "main"
    )
    assert targets == said == shown["figures"]["target tokens"]
    assert [(branch["role"], branch["above"]) for branch in shown["branches"]] == [
        ("main", None),
        ("main", 0),
        ("side", 0),
    ]


def test_the_page_is_whole_and_safe(run, tmp_path, capsys):
    tree("first/0000/00", run_dir=run.folder, html=tmp_path / "tree.html", json_=True)
    text = (tmp_path / "tree.html").read_text()
    assert "https://" not in text
    assert "http://" not in text
    data = re.search(r"const shown = (\{.*\});", text)
    assert data is not None
    shown = json.loads(data[1])
    texts = [call["prompt_text"] for branch in shown["branches"] for call in branch["calls"]]
    assert any("Fix <b>it</b>, member 0." in text for text in texts)

    class Tags(HTMLParser):
        seen: list[str] = []

        def handle_starttag(self, tag, attrs):
            self.seen.append(tag)

    parser = Tags()
    parser.feed(text)
    assert "b" not in parser.seen  # what agents say never becomes markup
    capsys.readouterr()


def test_an_unknown_execution_is_refused_with_those_there_are(run):
    with pytest.raises(InvalidInput, match="no execution first/0009/00; there is cli/execution/first/0000/00"):
        tree("first/0009/00", run_dir=run.folder)
    with pytest.raises(InvalidInput, match="no execution %"):
        tree("%", run_dir=run.folder)


def answer(run, member: int = 0) -> tuple[bool, str]:
    found = explain_execution(run.engine, run.objects, run.name(member))
    return found.trained, found.why


def test_an_execution_is_followed_into_the_gradient(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert answer(run) == (False, "its group is not admitted yet: other executions of it are open")
    run.admit()
    assert answer(run) == (False, "its group is ready and waits for a batch")
    run.pack()
    assert answer(run) == (False, f"{BATCH} is not committed yet")
    run.commit()
    trained, why = answer(run)
    assert trained
    assert re.fullmatch(
        rf"(\d+) targets in 1 micro-step of {BATCH}, which took version 3 to 4, each with \+0.7071 / \1", why
    )
    explain("first/0000/00", run_dir=run.folder)
    shown = capsys.readouterr().out
    for part in ("repair, by made-up (thin), attempt 1", "wall_limit; scored, reward 1.0", "1 side, finished"):
        assert part in shown
    assert "rewards 1, 0, -; mean 0.5, deviation 0.7071" in shown
    assert "dispatched at 2, admitted at 3, its oldest token 1 versions old" in shown
    assert "attempt 1, cell 2, boot epoch 4" in shown
    assert "1 of 4 calls do not go on with a recorded history" in shown
    assert "main: start" in shown
    assert "main: edited history" in shown


def test_targets_are_told_call_by_call(run):
    run.admit()
    run.pack("flat")
    found = explain_execution(run.engine, run.objects, run.name(0))
    assert found.batch is not None
    assert found.processed is not None
    (step,) = found.batch.micro_steps
    assert sum(step.calls.values()) == step.targets == found.processed.target_tokens == found.target_tokens
    assert set(step.calls) == {"00-0", "00-1", "00-2"}
    assert step.counted is None


def test_a_failed_grader_and_an_old_execution_say_so(run):
    run.admit(max_staleness=0)
    assert answer(run, 2) == (False, "left out at admission: evaluator_failed")
    assert answer(run, 0) == (False, "left out at admission: stale: 1 versions old")


def test_payloads_that_are_gone_are_said_to_be(run, capsys):
    run.admit()
    run.pack()
    run.commit()
    for file in [*run.folder.glob("objects/**/*.safetensors")]:
        file.unlink()
    trained, why = answer(run)
    assert trained
    assert "0 targets in 0 micro-steps that can still be read (not 0)" in why
    tree("first/0000/00", run_dir=run.folder)
    assert "no trajectory is stored" in capsys.readouterr().out


def test_executions_like_the_one_asked_for_are_named_those_of_its_burst_first():
    known = [
        f"r/execution/{burst}/{group:04d}/{member:02d}"
        for burst in ("first", "second")
        for group in range(3)
        for member in range(2)
    ]
    assert nearest("second/9/9", known)[0].startswith("r/execution/second/")
    assert nearest("second/2/1", known)[0] == "r/execution/second/0002/01"
    assert nearest("frist/0001/00", known)[0] == "r/execution/first/0001/00"
    assert nearest("x", []) == []


def test_an_execution_without_calls_says_why_in_both_views(run, capsys):
    with run.engine.begin() as connection:
        connection.execute(delete(schema.calls))
        connection.execute(
            update(schema.executions).values(trajectory=None, end_reason="crashed", detail="harness: exit code 127")
        )
    tree("first/0000/00", run_dir=run.folder)
    assert "no model call was recorded; its end: crashed; harness: exit code 127" in capsys.readouterr().out
    explain("first/0000/00", run_dir=run.folder)
    shown = " ".join(capsys.readouterr().out.split())
    assert "said harness: exit code 127" in shown
    assert "None to None" not in shown


def test_an_empty_trajectory_is_called_empty(run, capsys):
    nothing = ProcessedExecution(calls=0, paths=0, target_tokens=0, oldest_version=None, newest_version=None)
    with run.engine.begin() as connection:
        stored = connection.execute(select(schema.executions.c.trajectory)).scalars().first()
        stored = stored | {"processed": nothing.model_dump(mode="json")}
        connection.execute(update(schema.executions).values(trajectory=stored))
    explain("first/0000/00", run_dir=run.folder)
    shown = " ".join(capsys.readouterr().out.split())
    assert "empty: the harness ended without a model call" in shown
    assert "None to None" not in shown

import json
import tomllib
from pathlib import Path

import pytest

from infra.settings.fleet import Fleet
from workers.cli.app import main
from workers.cli.files import fleet_toml
from workflows.messages.burst import BurstSpec, CampaignSpec
from workflows.messages.fleet import CellSpec
from workflows.messages.policies import Bounds


def run(*arguments: str) -> int:
    """Exit code of a command line."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code if isinstance(ended.value.code, int) else 0


@pytest.fixture
def burst_file(tmp_path: Path, capsys) -> Path:
    run("burst", "example", "--run", "r1", "--name", "b1")
    path = tmp_path / "burst.json"
    path.write_text(capsys.readouterr().out)
    return path


def test_the_examples_are_valid(burst_file, capsys):
    assert BurstSpec.model_validate_json(burst_file.read_text()).name == "b1"
    assert run("burst", "check", str(burst_file)) == 0
    assert "8 groups, 64 executions" in capsys.readouterr().out
    run("campaign", "example", "--name", "c1")
    assert CampaignSpec.model_validate_json(capsys.readouterr().out).nth(0).name == "c1-000"


def test_an_example_takes_its_main_numbers(capsys):
    run("burst", "example", "--steps", "3", "--groups", "2", "--executions", "4", "--harness", "pi")
    spec = BurstSpec.model_validate_json(capsys.readouterr().out)
    assert (spec.steps, spec.groups_per_step, spec.executions_per_group, spec.harness.name) == (3, 2, 4, "pi")
    assert run("burst", "example", "--steps", "0") == 2
    assert "steps: " in capsys.readouterr().err
    assert run("burst", "example", "--harness", "nobody") == 2


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sampling": {"temperature": 3}}, "sampling.temperature"),
        ({"stepz": 2}, "stepz"),
        ({"run": "No Spaces"}, "run"),
        ({"training": {"clip_low": "wide"}}, "training.clip_low"),
    ],
)
def test_a_wrong_field_is_named(burst_file, capsys, change, named):
    burst_file.write_text(json.dumps(json.loads(burst_file.read_text()) | change))
    assert run("burst", "check", str(burst_file)) == 2
    assert f"{burst_file}: {named}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "meant"),
    [
        ({"stepz": 2}, "steps"),
        ({"sampling": {"temprature": 1}}, "temperature"),
        ({"policy": {"nmae": "elastic"}}, "name"),
    ],
)
def test_a_field_that_is_nearly_right_is_told(burst_file, capsys, change, meant):
    burst_file.write_text(json.dumps(json.loads(burst_file.read_text()) | change))
    assert run("burst", "check", str(burst_file)) == 2
    assert f"unknown field; did you mean `{meant}`?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("harness", "told"),
    [
        ({"name": "mini-swe"}, "harness.name: no harness 'mini-swe'; there are"),
        ({"name": "command", "settings": {"comand": "x"}}, "harness.settings.comand: "),
        ({"name": "command", "settings": {}}, "harness.settings.command: expected a command line"),
    ],
)
@pytest.mark.parametrize("kind", ["burst", "campaign"])
def test_a_harness_that_can_never_run_is_named(burst_file, capsys, harness, told, kind):
    burst = json.loads(burst_file.read_text()) | {"harness": harness}
    written = burst if kind == "burst" else {"run": "r1", "name": "c", "bursts": 2, "burst": burst}
    burst_file.write_text(json.dumps(written))
    assert run(kind, "check", str(burst_file)) == 2
    assert told in capsys.readouterr().err


def test_a_model_that_is_none_is_named(tmp_path, capsys):
    file = tmp_path / "fleet.toml"
    for model, told in (("Qwen/Qwen3-0.6B", "has to be a local folder"), ("docs", "config.json, tokenizer.json")):
        file.write_text(f'model = "{model}"')
        assert run("fleet", "check", str(file)) == 2
        shown = capsys.readouterr().err
        assert "model: " in shown
        assert told in shown


def test_a_fleet_field_that_is_nearly_right_is_told(tmp_path, capsys):
    for text, meant in (("modell = 'x'", "model"), ("[[cells]]\nindex = 0\nslotz = 3", "slots")):
        file = tmp_path / "fleet.toml"
        file.write_text(text)
        assert run("fleet", "check", str(file)) == 2
        assert f"did you mean `{meant}`?" in capsys.readouterr().err


def test_a_paced_trainer_takes_part_in_no_groups(tmp_path, capsys):
    file = tmp_path / "fleet.toml"
    file.write_text('trainer = "paced"\ncombine = "groups"')
    assert run("fleet", "check", str(file)) == 2
    assert "combine: a paced trainer" in capsys.readouterr().err
    file.write_text('trainer = "paced"\ncombine = "reads"')
    assert run("fleet", "check", str(file)) == 0


def test_every_wrong_field_is_named_at_once(burst_file, capsys):
    burst_file.write_text(json.dumps(json.loads(burst_file.read_text()) | {"steps": 0, "seed": -1}))
    run("burst", "check", str(burst_file))
    shown = capsys.readouterr().err
    assert ": steps: " in shown
    assert ": seed: " in shown


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_file_that_is_no_object_is_refused_without_a_traceback(burst_file, capsys, text):
    burst_file.write_text(text)
    assert run("burst", "check", str(burst_file)) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_missing_file_is_named(tmp_path, capsys):
    assert run("burst", "check", str(tmp_path / "none.json")) == 2
    assert "no such file" in capsys.readouterr().err


def test_the_schema_describes_the_example(burst_file, capsys):
    run("burst", "schema")
    schema = json.loads(capsys.readouterr().out)
    assert schema["additionalProperties"] is False
    assert set(json.loads(burst_file.read_text())) == set(schema["properties"])


def test_the_fleet_example_is_the_default_fleet(tmp_path, capsys):
    run("fleet", "example")
    text = capsys.readouterr().out
    assert Fleet.model_validate(tomllib.loads(text)) == Fleet()
    (tmp_path / "fleet.toml").write_text(text)
    assert run("fleet", "check", str(tmp_path / "fleet.toml")) == 0


def test_any_fleet_survives_being_written_as_a_file():
    fleet = Fleet(
        run="x", cells=(CellSpec(index=0, engine="paced", slots=3),), kv_handoff=False, task_sets={'a "b".c': "d\\e"}
    )
    assert Fleet.model_validate(tomllib.loads(fleet_toml(fleet))) == fleet


def test_a_wrong_fleet_file_names_its_field(tmp_path, capsys):
    path = tmp_path / "fleet.toml"
    path.write_text("[[cells]]\nindex = 0\nslots = 0\n")
    assert run("fleet", "check", str(path)) == 2
    assert "cells.0.slots" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[bounds]\nmin_rollout_cells = 3\n", "bounds.min_rollout_cells"),
        ("[bounds]\nmin_training_cells = 4\n", "bounds.min_training_cells"),
        ("[bounds]\nmax_training_cells = 0\n", "bounds.max_training_cells"),
        ("evaluator_slots = -1\n", "evaluator_slots"),
        ("max_cells = 0\n", "max_cells"),
    ],
)
def test_bounds_that_the_fleet_cannot_keep_are_named(tmp_path, capsys, text: str, named: str):
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    assert run("fleet", "check", str(path)) == 2
    assert named in capsys.readouterr().err


def test_bounds_survive_being_written_as_a_file():
    fleet = Fleet(bounds=Bounds(min_rollout_cells=1, max_training_cells=2), evaluator_slots=4)
    assert Fleet.model_validate(tomllib.loads(fleet_toml(fleet))) == fleet


def test_every_wrong_field_of_a_fleet_is_named_at_once_and_nothing_else_is_printed(tmp_path, capsys):
    path = tmp_path / "fleet.toml"
    path.write_text(
        'cells = 3\nharness_slots = "many"\nrum = 2\n[bounds]\nmin_training_cells = 2\nmax_training_cells = 1'
    )
    assert run("fleet", "check", str(path)) == 2
    shown = capsys.readouterr().err
    for line in (
        "cells: Input should be a list (got 3)",
        "harness_slots: Input should be a valid integer, unable to parse string as an integer (got 'many')",
        "rum: unknown field; did you mean `run`? (got 2)",
        "bounds.max_training_cells: 1 is below min_training_cells",
    ):
        assert f"{path}: {line}\n" in shown
    path.write_text('[[cells]]\nindex = 0\nengine = "vllm"\n')
    run("fleet", "check", str(path))
    assert f"{path}: cells.0.engine: Input should be one of sglang, paced (got 'vllm')\n" in capsys.readouterr().err
    path.write_text("cells = []")
    run("fleet", "check", str(path))
    assert capsys.readouterr().err.endswith("cells: indices must be 0, 1, 2, ... in order, cell 0 being the core\n")


def test_what_several_fields_have_to_agree_on_names_them_in_full(burst_file, capsys):
    burst = json.loads(burst_file.read_text())
    for change, named in (
        ({"policy": {"shuffle": True}}, "policy.shuffle: needs streaming"),
        ({"sampling": {"top_p": 0.5}}, "sampling.top_p, sampling.top_k: training needs"),
        ({"staleness": 3, "carry_over": 1}, "carry_over: follows from staleness"),
        ({"training": {"selection": {"role_priority": ["main", "main"]}}}, "role_priority: names a role twice"),
    ):
        burst_file.write_text(json.dumps(burst | change))
        assert run("burst", "check", str(burst_file)) == 2
        shown = capsys.readouterr().err
        assert named in shown
        assert "Value error" not in shown


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("offer", "0"), "COUNT: expected at least 1, got 0"),
        (("reclaim", "--", "-1"), "CELL: expected the index of a cell, got -1"),
        (("reclaim", "2", "--deadline", "-1"), "--deadline: expected 0 to 518400 seconds from now, got -1"),
        (("reclaim", "2", "--deadline", "nan"), "--deadline: expected 0 to 518400 seconds from now, got nan"),
    ],
)
def test_what_no_fleet_can_do_is_refused_before_anybody_is_asked(capsys, arguments, named):
    assert run("cells", *arguments) == 2
    assert named in capsys.readouterr().err

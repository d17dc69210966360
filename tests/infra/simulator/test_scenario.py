"""Scenario files: wrong ones name the field, right ones are what they say."""

from pathlib import Path

import pytest

from infra.simulator.scenario import Scenario, Variant, load_scenario
from workflows.messages.errors import InvalidSpec

GOOD = """
cells = 4
steps = 6
[durations]
mean_seconds = 100
[engines]
slots = 16
[[variants]]
label = "mine"
policy = "async"
split = 2
"""


def test_toml_and_json_are_read(tmp_path: Path) -> None:
    toml, json = tmp_path / "s.toml", tmp_path / "s.json"
    toml.write_text(GOOD)
    scenario = load_scenario(toml)
    json.write_text(scenario.model_dump_json())
    assert load_scenario(json) == scenario
    assert (scenario.cells, scenario.variants[0].policy) == (4, "async")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("cells = 0", "cells"),
        ("cels = 3", "cels"),
        ("staleness = -1.0", "staleness"),
        ("durations = {mean_seconds = 'long'}", "durations.mean_seconds"),
        ("durations = {model_share = 1.5}", "durations.model_share"),
        ("engines = {slots = 3}", "engines.slots"),
        ("training = {step_seconds = 0}", "training.step_seconds"),
        ("variants = [{label = 'x', policy = 'magic'}]", "variants.0.policy"),
        ("variants = [{label = 'x', policy = 'async', split = 8}]", "split"),
        ("variants = [{label = 'x', policy = 'async', shuffle = true}]", "shuffle"),
        ("variants = [{label = 'x', policy = 'async'}, {label = 'x', policy = 'lending'}]", "variants"),
        ("burst_steps = 4\nstaleness = 1.0", "staleness"),
        ("split = 8", "split"),
        ("steps = [", "cannot be read"),
    ],
)
def test_wrong_input_names_the_field(tmp_path: Path, change: str, named: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(change)
    with pytest.raises(InvalidSpec, match=named.replace(".", r"\.")):
        load_scenario(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="no such scenario file"):
        load_scenario(tmp_path / "none.toml")


def test_phi_follows_from_the_staleness_target() -> None:
    scenario = Scenario(staleness=1.5, burst_steps=2)
    settled = scenario.settled(Variant(label="x", policy="waterlevel", burst_steps=4))
    assert (settled.burst_steps, settled.carry_over) == (4, 0.0)
    assert scenario.settled(scenario.variants[0]).carry_over == 1.0

"""The list of patches is what the workflows ask for, no more and no less; each is asked for in one way only."""

import ast
from collections.abc import Mapping
from pathlib import Path

from workflows import patches
from workflows.patches import Patch

WORKFLOWS = Path(__file__).parents[2] / "workflows"
BARE = {"patched", "deprecate_patch"}
ASKED = {"applies", "expire"}


def faults(listed: Mapping[str, Patch], patched: tuple[Patch, ...], sources: Mapping[str, str]) -> list[str]:
    """What is wrong. `listed`: by their names in `workflows.patches`; `sources`: the workflow modules."""
    found = [f"{patch.id} is listed twice" for patch in patched if patched.count(patch) > 1]
    ids = [patch.id for patch in listed.values()]
    found += [f"{name}: the id {patch.id} is taken" for name, patch in listed.items() if ids.count(patch.id) > 1]
    found += [f"{name} is not in PATCHES" for name, patch in listed.items() if patch not in patched]
    found += [
        f"{name} says not what it changed, or since when" for name, p in listed.items() if not p.changed or not p.since
    ]
    asked: dict[str, set[str]] = {}
    for module, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Attribute):
                continue
            if node.attr in BARE and isinstance(node.value, ast.Name) and node.value.id == "workflow":
                found.append(f"{module}: workflow.{node.attr} instead of a patch of workflows/patches.py")
            of = node.value
            if node.attr in ASKED and isinstance(of, ast.Attribute) and ast.unparse(of.value) == "patches":
                asked.setdefault(of.attr, set()).add(node.attr)
    found += [f"{name} is used nowhere: remove it" for name in listed if name not in asked]
    found += [f"{name} is unknown" for name in asked if name not in listed]
    found += [
        f"{name} applies in one place and has expired in another" for name, ways in asked.items() if ways == ASKED
    ]
    return sorted(found)


def test_what_is_listed_is_what_the_workflows_ask_for():
    listed = {name: value for name, value in vars(patches).items() if isinstance(value, Patch)}
    sources = {
        str(path.relative_to(WORKFLOWS)): path.read_text()
        for path in sorted(WORKFLOWS.rglob("*.py"))
        if path.name != "patches.py"
    }
    assert "scheduler.py" in sources
    assert faults(listed, patches.PATCHES, sources) == []


def test_every_fault_is_found():
    early, late = Patch("early", "0.2", "checks first"), Patch("late", "0.3", "checks last")
    asks = "if patches.EARLY.applies():\n    pass\npatches.LATE.expire()\n"
    assert faults({"EARLY": early, "LATE": late}, (early, late), {"cell.py": asks}) == []
    assert faults({"EARLY": early}, (early, early), {"a.py": "patches.EARLY.applies()"}) == [
        "early is listed twice",
        "early is listed twice",
    ]
    assert faults({"EARLY": early}, (), {"a.py": "patches.EARLY.applies()"}) == ["EARLY is not in PATCHES"]
    assert faults({"EARLY": early}, (early,), {"a.py": ""}) == ["EARLY is used nowhere: remove it"]
    assert faults({}, (), {"a.py": "patches.EARLY.applies()"}) == ["EARLY is unknown"]
    assert faults({}, (), {"a.py": "workflow.patched('x')\nworkflow.deprecate_patch('x')"}) == [
        "a.py: workflow.deprecate_patch instead of a patch of workflows/patches.py",
        "a.py: workflow.patched instead of a patch of workflows/patches.py",
    ]
    both = {"a.py": "patches.EARLY.applies()", "b.py": "patches.EARLY.expire()"}
    assert faults({"EARLY": early}, (early,), both) == ["EARLY applies in one place and has expired in another"]
    twin = Patch("early", "", "")
    assert faults({"EARLY": early, "TWIN": twin}, (early, twin), {"a.py": asks + "patches.TWIN.applies()"}) == [
        "EARLY: the id early is taken",
        "LATE is unknown",
        "TWIN says not what it changed, or since when",
        "TWIN: the id early is taken",
    ]

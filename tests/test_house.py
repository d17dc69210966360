"""Rules of the house that no other tool checks."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("workflows", "activities", "workers", "harness_adapters", "infra")
LINE_LIMIT = 400
UNFINISHED = ("TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error")


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def test_there_is_something_to_check():
    assert len(modules()) > 50


def test_every_module_is_short_and_finished():
    faults: list[str] = []
    for path in modules():
        text, name = path.read_text(), str(path.relative_to(ROOT))
        if len(text.splitlines()) > LINE_LIMIT:
            faults.append(f"{name}: {len(text.splitlines())} lines")
        faults += [f"{name}: {word}" for word in UNFINISHED if word in text]
        if path.name == "utils.py":
            faults.append(f"{name}: a module is a noun")
    assert faults == []


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for path in modules()}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_no_tracked_file_names_a_path_of_the_machine_it_was_written_on():
    for needle in (f"{ROOT}/", f"{Path.home()}/"):
        found = subprocess.run(["git", "grep", "-lF", needle], cwd=ROOT, capture_output=True, text=True, check=False)
        assert found.stdout == ""

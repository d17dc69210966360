"""The demo's tasks in the Harbor layout.

    python -m infra.demo.tasks --out DIR --train 300 --heldout 48 --seed 0

Deterministic: the same arguments give the same bytes. Training and held-out tasks are drawn from disjoint streams, and
a held-out task never equals a training one.
"""

import argparse
import os
import random
import shutil
from pathlib import Path

from infra.demo.families import FAMILIES, Repair, draw

_TASK = """version = "1.0"

[metadata]
name = "{name}"
family = "{family}"
repairs = {repairs}

[agent]
timeout_sec = 300.0

[verifier]
timeout_sec = 30.0

[environment]
cpus = 1
memory_mb = 512
"""
# The paths of the layout, or what the runner passes where it cannot bind them.
_TEST = """#!/bin/sh
tests="${GYRE_TESTS_DIR:-/tests}"
logs="${GYRE_LOGS_DIR:-/logs}"
cd "${GYRE_WORKSPACE:-/app}" || exit 1
mkdir -p "$logs/verifier" || exit 1
reward=1
while read -r mode file; do
  if ! cmp -s "$tests/expected/$file" "$file"; then
    echo "$file is not as it should be"
    reward=0
  elif test "$mode" != "$(stat -c %a "$file")"; then
    echo "$file has other rights than it should"
    reward=0
  fi
done < "$tests/files.txt"
echo "$reward" > "$logs/verifier/reward.txt"
"""


def repair_of(split: str, seed: int, index: int) -> Repair:
    """Task `index` of a split ("train", "heldout" or "demonstration"): families take turns."""
    names = sorted(FAMILIES)
    return draw(random.Random(f"{split}/{seed}/{index}"), names[index % len(names)])


def write_task(repair: Repair, folder: Path, name: str) -> None:
    """Write one task folder; what stood there is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    write_workspace(repair, folder / "environment")
    tests, solution = folder / "tests", folder / "solution"
    tests.mkdir()
    solution.mkdir()
    header = _TASK.format(name=name, family=repair.family, repairs=repair.repairs)
    (folder / "task.toml").write_text(header)
    (folder / "instruction.md").write_text(repair.instruction)
    (tests / "test.sh").write_text(_TEST)
    for file, text in repair.expected.items():
        _put(tests / "expected" / file, text, 0o644)
    (tests / "files.txt").write_text("".join(f"644 {file}\n" for file in sorted(repair.expected)))
    lines = ["#!/bin/sh", 'cd "${GYRE_WORKSPACE:-/app}" || exit 1', *repair.right]
    (solution / "solve.sh").write_text("\n".join(lines) + "\n")
    for script in (tests / "test.sh", solution / "solve.sh"):
        os.chmod(script, 0o755)


def write_workspace(repair: Repair, folder: Path) -> None:
    """The starting state of a task."""
    for file, text in repair.files.items():
        _put(folder / file, text, 0o644)


def write_task_set(out: Path, *, train: int, heldout: int, seed: int) -> None:
    """`out/train/0000-config`, ..., `out/heldout/...`; a folder that is there already is replaced."""
    taken: set[str] = set()
    for split, count in (("train", train), ("heldout", heldout)):
        shutil.rmtree(out / split, ignore_errors=True)
        (out / split).mkdir(parents=True)
        index = position = 0
        while index < count:
            repair = repair_of(split, seed, position)
            position += 1
            if repr(repair) in taken:
                continue
            taken.add(repr(repair))
            name = f"{index:04d}-{repair.family}"
            write_task(repair, out / split / name, name)
            index += 1


def _put(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.chmod(path, mode)  # whatever the umask says


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the demo's tasks in the Harbor layout.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", type=int, default=300)
    parser.add_argument("--heldout", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_task_set(arguments.out, train=arguments.train, heldout=arguments.heldout, seed=arguments.seed)


if __name__ == "__main__":
    main()

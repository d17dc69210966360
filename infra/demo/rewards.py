"""What the written tasks' tests decide, for rollouts in this process."""

from pathlib import Path

from infra.demo.families import Repair


def solved(repair: Repair, workspace: Path) -> bool:
    """What `tests/test.sh` of the written task decides."""
    for file, text in repair.expected.items():
        path = workspace / file
        if not path.is_file() or path.read_bytes() != text.encode():
            return False
        if path.stat().st_mode & 0o7777 != 0o644:
            return False
    return True

"""Which code wrote a checkpoint."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def code_version() -> str:
    """The checkout's commit, with ``+changes`` if files differ from it; "unknown" outside a checkout."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return "unknown"
    return commit + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

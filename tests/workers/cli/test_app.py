import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def python(code: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return answer.stdout


def test_the_command_line_starts_without_anything_heavy():
    code = "import sys; from workers.cli.app import build; build(); print(sorted(sys.modules))"
    loaded = python(code)
    for heavy in ("torch", "numpy", "temporalio", "sqlalchemy", "httpx2", "workers.supervisor"):
        assert f"'{heavy}'" not in loaded


def test_help_names_every_command():
    shown = python("from workers.cli.app import build; build()(['--help'], exit_on_error=False)")
    for command in ("up", "doctor", "burst", "campaign", "fleet", "ledger", "status", "audit", "demo", "bench"):
        assert f" {command} " in shown


def test_the_version_is_the_project_s():
    assert python("from workers.cli.app import main; main(['--version'])").startswith("opengyre 0.")

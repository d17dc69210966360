import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.cli.app import main

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
    for command in (
        "up",
        "doctor",
        "burst",
        "campaign",
        "fleet",
        "checkpoints",
        "ledger",
        "status",
        "audit",
        "demo",
        "bench",
    ):
        assert f" {command} " in shown


def test_the_version_is_the_project_s():
    assert python("from workers.cli.app import main; main(['--version'])").startswith("opengyre 0.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fleet", "check", "FOLDER"], "FOLDER: Is a directory"),
        (["burst", "check", "FOLDER"], "FOLDER: Is a directory"),
        (["fleet", "check", "FOLDER/bytes"], "FOLDER/bytes is not TOML"),
        (["up", "--run-dir", "FOLDER/bytes"], "FOLDER/bytes: File exists"),
        (["up", "--run-dir", "/proc/nowhere/run"], "No such file or directory"),
    ],
)
def test_a_place_that_cannot_be_used_is_named_without_a_traceback(tmp_path, capsys, arguments, said):
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(SystemExit) as ended:
        main([argument.replace("FOLDER", str(tmp_path)) for argument in arguments])
    assert ended.value.code in (1, 2)
    assert said.replace("FOLDER", str(tmp_path)) in capsys.readouterr().err


def test_a_reader_that_has_read_enough_is_no_fault_of_the_program():
    script = "import sys; from workers.cli.app import main; main(['burst', 'schema'])"
    reader, writer = os.pipe()
    os.close(reader)
    gyre = subprocess.run([sys.executable, "-c", script], stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    os.close(writer)
    assert (gyre.returncode, gyre.stderr) == (1, b"")

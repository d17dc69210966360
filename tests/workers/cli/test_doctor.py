import hashlib

import pytest

from infra.doctor import Verdict
from workers.cli import doctor


def test_the_harness_must_be_installed_from_the_present_lock_file(tmp_path):
    missing = doctor.check_harness(tmp_path)
    assert (missing.verdict, missing.fix) == (Verdict.FAIL, "make setup")
    environment = doctor.MiniSweAgent().environment_of(tmp_path)
    environment.python.parent.mkdir(parents=True)
    environment.python.touch()
    mark = environment.folder / "installed-from.sha256"
    mark.write_text("of an older lock")
    assert doctor.check_harness(tmp_path).verdict is Verdict.FAIL
    mark.write_text(hashlib.sha256(environment.lock.read_bytes()).hexdigest())
    assert doctor.check_harness(tmp_path).verdict is Verdict.OK


def test_one_bad_finding_makes_the_command_fail(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(doctor, "examine", lambda _: [])
    monkeypatch.setattr(doctor, "CHECKOUT", tmp_path)
    with pytest.raises(SystemExit) as ended:
        doctor.doctor()
    assert ended.value.code == 1
    assert "fix: make setup" in capsys.readouterr().out

import hashlib

import pytest

from infra.doctor import Verdict
from workers.cli import doctor


def test_the_harness_must_be_installed_from_the_present_lock_file(tmp_path):
    missing = doctor.check_harnesses(tmp_path)[0]
    assert (missing.verdict, missing.fix) == (Verdict.FAIL, "make setup")
    environment = doctor.MiniSweAgent().environment_of(tmp_path)
    environment.python.parent.mkdir(parents=True)
    environment.python.touch()
    mark = environment.folder / "installed-from.sha256"
    mark.write_text("of an older lock")
    assert doctor.check_harnesses(tmp_path)[0].verdict is Verdict.FAIL
    mark.write_text(hashlib.sha256(environment.locks[0].read_bytes()).hexdigest())
    assert doctor.check_harnesses(tmp_path)[0].verdict is Verdict.OK


def test_one_bad_finding_makes_the_command_fail(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(doctor, "examine", lambda _: [])
    monkeypatch.setattr(doctor, "CHECKOUT", tmp_path)
    with pytest.raises(SystemExit) as ended:
        doctor.doctor()
    assert ended.value.code == 1
    assert "fix: make setup" in capsys.readouterr().out


def test_harnesses_that_are_there_are_named(tmp_path):
    assert "none installed" in doctor.check_harnesses(tmp_path)[1].detail
    environment = doctor.adapters()["pi"].environment_of(tmp_path)
    environment.folder.mkdir(parents=True)
    contents = b"".join(lock.read_bytes() for lock in environment.locks)
    (environment.folder / "installed-from.sha256").write_text(hashlib.sha256(contents).hexdigest())
    assert doctor.check_harnesses(tmp_path)[1].detail == "pi 0.73.1"

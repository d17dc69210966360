"""What the fleet asks for, and what the machine gives."""

from types import SimpleNamespace

import pytest

from infra.processes.isolation import Isolation
from infra.settings.fleet import Fleet
from workers.harness_host import host
from workflows.messages.errors import HarnessUnusable

ALL = Isolation("/bwrap", files=True, processes=True, network=True)
PART = Isolation("/bwrap", files=True, processes=True, reason="no network of one's own")
NONE = Isolation(reason="bubblewrap is not installed")


def asked(monkeypatch, setting, here):
    monkeypatch.setattr(host, "isolation_here", lambda: here)
    return host.isolation_for(SimpleNamespace(fleet=Fleet(isolation=setting)))  # type: ignore[arg-type]


@pytest.mark.parametrize("here", [ALL, PART, NONE])
def test_auto_takes_what_there_is_and_says_so(monkeypatch, caplog, here):
    with caplog.at_level("INFO"):
        assert asked(monkeypatch, "auto", here) is here
    assert here.words in caplog.text
    assert here.reason in caplog.text
    assert caplog.records[0].levelname == ("INFO" if here.network else "WARNING")


def test_required_refuses_to_run_without(monkeypatch):
    assert asked(monkeypatch, "required", ALL) is ALL
    for here in (PART, NONE):
        with pytest.raises(HarnessUnusable, match=here.reason):
            asked(monkeypatch, "required", here)


def test_off_does_not_even_look(monkeypatch):
    def look():
        raise AssertionError("nobody asked")

    monkeypatch.setattr(host, "isolation_here", look)
    kept = host.isolation_for(SimpleNamespace(fleet=Fleet(isolation="off")))  # type: ignore[arg-type]
    assert (kept.files, kept.processes, kept.network) == (False, False, False)

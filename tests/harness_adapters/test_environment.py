"""A place for a harness is filled once, whoever asks, and again when its lock has changed."""

import threading
import time

import pytest

from harness_adapters import node_environment
from harness_adapters.environment import Installation, run_installer
from workflows.messages.errors import HarnessUnusable


class Counted(Installation):
    """Fills slowly, and counts."""

    def __init__(self, folder, lock):
        super().__init__(folder, (lock,))
        self.fails = False

    def _fill(self):
        assert not self.folder.exists()
        self.folder.mkdir()
        time.sleep(0.1)
        if self.fails:
            raise HarnessUnusable("no registry")
        with (self.folder.parent / "filled").open("a") as file:
            file.write("x")


@pytest.fixture
def lock(tmp_path):
    file = tmp_path / "lock"
    file.write_text("one")
    return file


def filled(tmp_path):
    return len((tmp_path / "root" / "filled").read_text())


def test_several_at_once_fill_it_once(tmp_path, lock):
    places = [Counted(tmp_path / "root" / "harness", lock) for _ in range(4)]
    threads = [threading.Thread(target=place.install) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(place.is_current() for place in places)
    assert filled(tmp_path) == 1


def test_a_changed_lock_fills_it_again(tmp_path, lock):
    place = Counted(tmp_path / "root" / "harness", lock)
    place.install()
    place.install()
    assert filled(tmp_path) == 1
    lock.write_text("two")
    assert not place.is_current()
    place.install()
    assert (place.is_current(), filled(tmp_path)) == (True, 2)


def test_half_an_installation_is_none(tmp_path, lock):
    place = Counted(tmp_path / "root" / "harness", lock)
    place.fails = True
    with pytest.raises(HarnessUnusable, match="no registry"):
        place.install()
    assert not place.is_current()
    place.fails = False
    place.install()
    assert place.is_current()


def test_what_a_package_manager_said_is_in_the_error():
    with pytest.raises(HarnessUnusable, match="not in the registry"):
        run_installer(["sh", "-c", "echo not in the registry >&2; exit 1"], {})
    with pytest.raises(HarnessUnusable, match="no-such-manager"):
        run_installer(["no-such-manager"], {"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize(("said", "taken"), [("v20.1.0", True), ("v18.19.0", False), ("not a version", False)])
def test_a_node_that_is_too_old_is_not_taken(tmp_path, monkeypatch, said, taken):
    program = tmp_path / "node"
    program.write_text(f"#!/bin/sh\necho {said}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (node_environment.node() == str(program)) is taken
    monkeypatch.setattr(node_environment, "_WHEEL", None)
    if not taken:
        with pytest.raises(HarnessUnusable, match="node 20 or later"):
            node_environment.node()

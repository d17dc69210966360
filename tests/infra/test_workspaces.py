"""Folders of executions: whole copies, secrets, nothing that cannot be removed."""

import os
import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from infra.settings.run import Secrets
from infra.workspaces import ExecutionFolder, copy_tree, folder_sha256, remove_tree


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with everything an agent may leave."""
    folder = tmp_path / "odd"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner/file").write_bytes(b"\0\xff no newline")
    (folder / "script").write_text("#!/bin/sh\n")
    (folder / "script").chmod(0o755)
    (folder / "gone").symlink_to("/nowhere")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "pipe")
    (folder / "closed").mkdir(mode=0)
    (folder / "-rf").write_text("a name like an option")
    return folder


def test_a_copy_is_whole(odd, tmp_path):
    copy_tree(odd, tmp_path / "copy")
    copy = tmp_path / "copy"
    assert sorted(os.listdir(copy)) == sorted(os.listdir(odd))
    assert (copy / "inner/file").read_bytes() == b"\0\xff no newline"
    assert os.readlink(copy / "gone") == "/nowhere"
    assert os.readlink(copy / "up") == ".."
    assert stat.S_ISFIFO((copy / "pipe").stat().st_mode)
    assert (copy / "script").stat().st_mode & 0o777 == 0o755
    assert (copy / "closed").stat().st_mode & 0o777 == 0


def test_a_half_copy_is_replaced_and_never_seen(odd, tmp_path):
    (tmp_path / "copy.partial").mkdir()
    (tmp_path / "copy.partial/old").touch()
    copy_tree(odd, tmp_path / "copy")
    assert not (tmp_path / "copy/old").exists()
    assert not (tmp_path / "copy.partial").exists()
    with pytest.raises(OSError, match="cannot copy"):
        copy_tree(tmp_path / "missing", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_everything_can_be_removed_and_links_are_not_followed(odd, tmp_path):
    (tmp_path / "precious").write_text("kept")
    (odd / "link").symlink_to(tmp_path)
    remove_tree(odd)
    assert not odd.exists()
    assert (tmp_path / "precious").read_text() == "kept"
    remove_tree(odd)
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    remove_tree(tmp_path / "link")
    assert (tmp_path / "precious").exists()
    assert not (tmp_path / "link").is_symlink()


def test_secrets_and_leftovers_go_when_the_execution_is_closed(tmp_path):
    folder = ExecutionFolder(tmp_path / "workspaces/b/0001/00")
    folder.make()
    token = folder.mint_token()
    assert folder.mint_token() == token
    assert ExecutionFolder.unclosed(tmp_path / "workspaces") == [folder]
    for path in (folder.run(1) / "job.json", folder.run(1) / "stdout.log", folder.pristine / "x", folder.app / "x"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(token)
    folder.forget_secrets()
    folder.trim()
    assert ExecutionFolder.unclosed(tmp_path / "workspaces") == []
    assert (folder.run(1) / "stdout.log").exists()
    assert (folder.app / "x").exists()
    assert not folder.pristine.exists()
    assert not (folder.run(1) / "job.json").exists()
    other = ExecutionFolder(tmp_path / "workspaces/b/0001/01")
    other.make()
    assert other.mint_token() != token


def test_secrets_can_stand_on_any_command_line(tmp_path):
    """A key that begins with a dash is taken for an option by the engine that gets it."""
    made = []
    for number in range(200):
        folder = ExecutionFolder(tmp_path / f"b/{number:04d}/00")
        folder.make()
        (tmp_path / f"run-{number}").mkdir()
        made += [folder.mint_token(), Secrets.of(tmp_path / f"run-{number}", create=True).admin_key]
    assert len(set(made)) == len(made)
    assert [secret for secret in made if not secret.isalnum()] == []
    with pytest.raises(ValidationError, match="admin_key"):
        Secrets(admin_key="-" + "k" * 40)


def test_a_folders_hash_is_that_of_names_and_contents(tmp_path):
    def made(name: str, files: dict[str, str]) -> Path:
        for path, text in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
        return tmp_path / name

    one = made("one", {"test.sh": "exit 0", "data/a": "x"})
    same = made("same", {"data/a": "x", "test.sh": "exit 0"})
    (same / "test.sh").chmod(0o755)
    assert folder_sha256(one) == folder_sha256(same)
    others = [
        made("renamed", {"test.sh": "exit 0", "data/b": "x"}),
        made("changed", {"test.sh": "exit 1", "data/a": "x"}),
        made("shifted", {"test.sh": "exit 0", "data/a": "", "data/x": "x"}),
        made("less", {"test.sh": "exit 0"}),
    ]
    (one / "link").symlink_to("test.sh")
    assert len({folder_sha256(folder) for folder in (*others, one, same)}) == 6

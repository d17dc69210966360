"""The folder of one execution on the harness host, and copies that keep what an agent made of it.

    <workspaces>/<burst>/<group>/<member>/
        app/                 the workspace: starts as the task's environment/
        home/, tmp/          HOME and TMPDIR of the harness
        private/             mode 0700: not the agent's
            spec.json        what the execution was started with
            token            the execution's secret, mode 0600; there until the execution is closed
            run-<n>/         job, runner and result of the n-th start of the harness
            pristine/        app/ as the agent left it
            grading-<n>/     tests, logs and home of the n-th grading

Symbolic links, FIFOs, sockets and rights are copied as they are; nothing is followed.
"""

import hashlib
import os
import secrets
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from workflows.messages import ids
from workflows.messages.execution import ExecutionSpec


@dataclass(frozen=True)
class ExecutionFolder:
    """Paths of one execution. `root` is also its process marker."""

    root: Path

    @classmethod
    def of(cls, workspaces: Path, spec: ExecutionSpec) -> "ExecutionFolder":
        return cls(workspaces / ids.group_id(spec.burst, spec.group) / f"{spec.member:02d}")

    @property
    def app(self) -> Path:
        return self.root / "app"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    @property
    def private(self) -> Path:
        return self.root / "private"

    @property
    def token(self) -> Path:
        return self.private / "token"

    @property
    def spec(self) -> Path:
        return self.private / "spec.json"

    @property
    def pristine(self) -> Path:
        return self.private / "pristine"

    @classmethod
    def unclosed(cls, workspaces: Path) -> "list[ExecutionFolder]":
        """Folders of executions that were prepared and not closed, in order of their names."""
        return [cls(token.parents[1]) for token in sorted(workspaces.glob("*/*/*/private/token"))]

    def run(self, number: int) -> Path:
        return self.private / f"run-{number}"

    def grading(self, number: int) -> Path:
        return self.private / f"grading-{number}"

    def make(self) -> None:
        for folder in (self.root, self.home, self.temporary):
            folder.mkdir(parents=True, exist_ok=True)
        self.private.mkdir(exist_ok=True, mode=0o700)

    def mint_token(self) -> str:
        """The execution's secret token: made once, found again by a retry."""
        if not self.token.exists():
            temporary = self.token.with_suffix(f".{os.getpid()}")
            descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
            try:
                os.link(temporary, self.token)  # unlike a rename it never replaces a token already handed out
            except FileExistsError:
                pass
            finally:
                temporary.unlink()
        return self.token.read_text()

    def write_home(self, name: str, text: str) -> None:
        """Write a file of a launch plan, mode 0600. Raises ValueError for a name that leads out of the home."""
        path = self.home / name
        if not path.resolve().is_relative_to(self.home.resolve()):
            raise ValueError(f"{name} is not inside the home of the execution")
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)

    def trim(self) -> None:
        """Remove what a closed execution needs no more: copies, test files, temporary files. Logs and app/ stay."""
        stale = [self.pristine, self.temporary]
        for grading in self.private.glob("grading-*"):
            stale += [grading / name for name in ("tests", "home", "tmp")]
        for folder in stale:
            remove_tree(folder)

    def forget_secrets(self) -> None:
        """Remove the token, and the jobs whose environment held it."""
        self.token.unlink(missing_ok=True)
        for job in self.private.glob("run-*/job.json"):
            job.unlink()


def folder_sha256(folder: Path) -> str:
    """What the folder's files are: sha256 over relative path and contents of each, in sorted order. Links count by
    where they point; rights and times do not count."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            content = os.fsencode(os.readlink(path))
        elif path.is_file():
            content = path.read_bytes()
        else:
            continue
        digest.update(os.fsencode(path.relative_to(folder)) + f"\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def token_sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder whole; `target` appears in one step or not at all. Replaces a half copy of an earlier attempt.

    Raises OSError when something cannot be copied.
    """
    partial = target.with_name(f"{target.name}.partial")
    remove_tree(partial)
    partial.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["cp", "-a", "--reflink=auto", "--", str(source), str(partial)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise OSError(f"cannot copy {source}: {done.stderr.strip()[:500]}")
    partial.rename(target)


def remove_tree(folder: Path) -> None:
    """Remove a folder, also one with folders that nobody may enter. A folder that is not there is fine."""
    if not folder.is_symlink() and not folder.exists():
        return
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink()
        return
    for path, names, _ in os.walk(folder):
        for name in names:
            entry = os.path.join(path, name)
            if not os.path.islink(entry):
                os.chmod(entry, os.lstat(entry).st_mode | stat.S_IRWXU)
    shutil.rmtree(folder)

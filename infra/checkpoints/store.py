"""Where checkpoints lie, and which of them can be trusted.

    <root>/v00000012-a0001/      version 12, second attempt to write it
        MANIFEST.json            written last: CheckpointMeta, with the sha256 and size of every other file
        model.safetensors ...    whatever the writer put there
    <root>/COMMITTED             name of the newest checkpoint that its batch has recorded

Invariants: a folder with its final name is complete (files and manifest are fsynced before the rename); no checkpoint
is ever overwritten; the committed one is never pruned. What the files mean is the writer's business.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, JsonValue, ValidationError

from infra.checkpoints.durable import file_sha256, replace_text, sync_file, sync_folder
from workflows.messages.base import Message
from workflows.messages.errors import CheckpointUnusable
from workflows.messages.training import CheckpointRef

log = logging.getLogger(__name__)

MANIFEST = "MANIFEST.json"
COMMITTED = "COMMITTED"
_NAME = re.compile(r"^v(\d{8})-a(\d{4})$")


class FileDigest(Message):
    """What one file of a checkpoint must be."""

    sha256: str
    bytes: int


class CheckpointMeta(Message):
    """What a checkpoint binds together. `counters` (sample position, waterlevel ...) is the caller's, opaque here."""

    version: int = Field(ge=0)
    checksum: str = Field(description="weights checksum")
    batch: str
    optimizer_steps: int = Field(ge=0)
    code_version: str
    counters: dict[str, JsonValue] = {}


class _Manifest(Message):
    meta: CheckpointMeta
    files: dict[str, FileDigest]


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint on disk."""

    folder: Path
    attempt: int
    meta: CheckpointMeta
    files: dict[str, FileDigest]

    @property
    def ref(self) -> CheckpointRef:
        return CheckpointRef(name=self.folder.name, version=self.meta.version, checksum=self.meta.checksum)

    def verify(self) -> None:
        """Raises CheckpointUnusable unless every file is there with the bytes it was written with."""
        for name, digest in self.files.items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size != digest.bytes or file_sha256(path) != digest.sha256:
                raise CheckpointUnusable(f"{self.folder.name}: {name} is missing or damaged")


class CheckpointStore:
    """The checkpoints of one run. One writer at a time."""

    def __init__(self, root: Path, keep: int = 3) -> None:
        self.root, self.keep = root, keep

    def write(self, meta: CheckpointMeta, fill: Callable[[Path], None]) -> Checkpoint:
        """Let `fill` write files into a new folder, then make them one durable, complete checkpoint."""
        self.root.mkdir(parents=True, exist_ok=True)
        name = f"v{meta.version:08d}-a{self._next_attempt(meta.version):04d}"
        draft = self.root / f".draft-{name}-{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            fill(draft)
            files = {
                path.name: FileDigest(sha256=file_sha256(path), bytes=path.stat().st_size) for path in _files(draft)
            }
            for path in _files(draft):
                sync_file(path)
            manifest = draft / MANIFEST
            manifest.write_text(_Manifest(meta=meta, files=files).model_dump_json(indent=1))
            sync_file(manifest)
            sync_folder(draft)
            os.rename(draft, self.root / name)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync_folder(self.root)
        checkpoint = self._read(self.root / name)
        if checkpoint is None:
            raise CheckpointUnusable(f"{name} cannot be read back")
        return checkpoint

    def list(self) -> tuple[Checkpoint, ...]:
        """Complete checkpoints, oldest first (by version, then attempt). Their files are not hashed here."""
        if not self.root.is_dir():
            return ()
        found = [self._read(folder) for folder in self.root.iterdir()]
        return tuple(sorted((c for c in found if c is not None), key=lambda c: (c.meta.version, c.attempt)))

    def last_complete(self) -> Checkpoint:
        """The newest checkpoint whose files all verify; damaged ones are passed over and logged.

        Raises CheckpointUnusable if there is none.
        """
        for checkpoint in reversed(self.list()):
            if self._verifies(checkpoint):
                return checkpoint
        raise CheckpointUnusable(f"{self.root} holds no complete checkpoint")

    def find(self, version: int, checksum: str | None = None) -> Checkpoint:
        """The newest verified checkpoint of `version` (and `checksum`, if given). Raises CheckpointUnusable."""
        for checkpoint in reversed(self.list()):
            wanted = checkpoint.meta.version == version and checksum in (None, checkpoint.meta.checksum)
            if wanted and self._verifies(checkpoint):
                return checkpoint
        raise CheckpointUnusable(f"{self.root} holds no complete checkpoint of version {version} with that checksum")

    def commit(self, name: str) -> None:
        """Mark a checkpoint as committed; an older one than is committed already changes nothing.

        Then prune: the newest `keep` stay, the committed one stays, drafts of dead writers and losing attempts go.
        Raises CheckpointUnusable if `name` is not complete.
        """
        checkpoint = self._read(self.root / name)
        if checkpoint is None:
            raise CheckpointUnusable(f"{name} is not a complete checkpoint")
        committed = self.committed()
        if committed is None or committed.meta.version <= checkpoint.meta.version:
            replace_text(self.root / COMMITTED, name)
        self._prune()

    def committed(self) -> Checkpoint | None:
        """The newest checkpoint that was committed, or None before the first."""
        path = self.root / COMMITTED
        return self._read(self.root / path.read_text().strip()) if path.is_file() else None

    def _prune(self) -> None:
        committed = self.committed()
        kept: list[Checkpoint] = []
        for checkpoint in reversed(self.list()):
            is_committed = committed is not None and checkpoint.folder == committed.folder
            lost = committed is not None and checkpoint.meta.version == committed.meta.version and not is_committed
            if is_committed or (len(kept) < self.keep and not lost):
                kept.append(checkpoint)
            else:
                self._remove(checkpoint.folder)
        for draft in self.root.glob(".draft-*"):
            self._remove(draft)

    def _remove(self, folder: Path) -> None:
        # The manifest goes first: a removal that is cut short leaves an incomplete folder, not a damaged checkpoint.
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def _verifies(self, checkpoint: Checkpoint) -> bool:
        try:
            checkpoint.verify()
        except CheckpointUnusable as damage:
            log.warning("checkpoint passed over: %s", damage)
            return False
        return True

    def _next_attempt(self, version: int) -> int:
        matches = [_NAME.match(folder.name) for folder in self.root.iterdir()]
        return 1 + max((int(m[2]) for m in matches if m and int(m[1]) == version), default=0)

    def _read(self, folder: Path) -> Checkpoint | None:
        match = _NAME.match(folder.name)
        if match is None or not (folder / MANIFEST).is_file():
            return None
        try:
            manifest = _Manifest.model_validate(json.loads((folder / MANIFEST).read_text()))
        except (ValidationError, ValueError) as error:
            log.warning("%s has an unreadable manifest and is passed over: %s", folder.name, str(error)[:200])
            return None
        return Checkpoint(folder, int(match[2]), manifest.meta, manifest.files)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)

"""Where checkpoints lie, and which of them can be trusted.

    <root>/v00000012-a0001/      version 12, first attempt to write it
        MANIFEST.json            CheckpointMeta, with the sha256 and size of every other file
        MANIFEST.sha256          its seal, written last
        model.safetensors ...    whatever the writer put there
    <root>/COMMITTED             name and seal of the newest checkpoint that its batch has recorded

Invariants: a folder with its final name is complete (files, manifest and seal are fsynced before the rename); no
checkpoint is ever overwritten; the committed one is never pruned. What the files mean is the writer's business.
"""

import logging
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from infra.checkpoints import manifest
from infra.checkpoints.durable import replace_text, sync_folder
from infra.checkpoints.manifest import MANIFEST, NAME, Checkpoint, CheckpointMeta
from workflows.messages.errors import CheckpointUnusable

log = logging.getLogger(__name__)

COMMITTED = "COMMITTED"
_DRAFT = ".draft-"


class CheckpointStore:
    """The checkpoints of one run. One writer at a time."""

    def __init__(self, root: Path, keep: int = 3) -> None:
        self.root, self.keep = root, keep

    def write(self, meta: CheckpointMeta, fill: Callable[[Path], None]) -> Checkpoint:
        """Let `fill` write files into a new folder, then make them one durable, complete checkpoint."""
        if not self.root.is_dir():
            self.root.mkdir(parents=True, exist_ok=True)
            sync_folder(self.root.parent)
        name = f"v{meta.version:08d}-a{self._next_attempt(meta.version):04d}"
        self._remove_drafts()  # a core that dies in every write must not fill the disk with what it leaves
        draft = self.root / f"{_DRAFT}{name}-{os.getpid()}"
        draft.mkdir()
        try:
            fill(draft)
            manifest.finish(draft, meta)
            os.rename(draft, self.root / name)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync_folder(self.root)
        return manifest.read(self.root / name)

    def list(self) -> tuple[Checkpoint, ...]:
        """Complete checkpoints, oldest first (by version, then attempt). Their files are not hashed here."""
        found = [_read(folder) for folder in self._folders()]
        return tuple(sorted((c for c in found if c is not None), key=lambda c: (c.meta.version, c.attempt)))

    def broken(self) -> dict[str, str]:
        """Folders that have a checkpoint's name and are none, and why; by name."""
        out: dict[str, str] = {}
        for folder in sorted(self._folders()):
            try:
                manifest.read(folder)
            except CheckpointUnusable as reason:
                out[folder.name] = str(reason)
        return out

    def last_complete(self) -> Checkpoint:
        """The newest checkpoint whose files all verify; damaged ones are passed over and logged.

        Raises CheckpointUnusable if there is none.
        """
        return self._first_whole(lambda _version, _checksum: True, "no complete checkpoint")

    def find(self, version: int, checksum: str | None = None, *, unread: Collection[str] = ()) -> Checkpoint:
        """The newest verified checkpoint of `version` (and `checksum`, if given).

        Whoever leaves some of its files `unread` is spared their hashing (see `Checkpoint.damage`). Raises
        CheckpointUnusable, naming what is damaged, if there is none.
        """

        def wanted(found: int, its_checksum: str | None) -> bool:
            return found == version and (checksum is None or its_checksum in (None, checksum))

        return self._first_whole(wanted, f"no complete checkpoint of version {version} with that checksum", unread)

    def commit(self, name: str) -> None:
        """Mark a checkpoint as committed; an older one than is committed already changes nothing.

        Then prune: the newest `keep` stay, the committed one stays, drafts of dead writers, losing attempts and what an
        interrupted removal left go. Raises CheckpointUnusable if `name` is not complete.
        """
        checkpoint = manifest.read(self.root / name)
        try:
            committed = self.committed()
        except CheckpointUnusable as damage:
            log.warning("%s; replaced", damage)
            committed = None
        if committed is None or committed.meta.version <= checkpoint.meta.version:
            replace_text(self.root / COMMITTED, f"{name} {checkpoint.seal}\n")
            committed = checkpoint
        self._prune(committed)

    def committed(self) -> Checkpoint | None:
        """The newest checkpoint that was committed, or None before the first.

        Raises CheckpointUnusable if the mark is damaged, or what it names is no longer that very checkpoint.
        """
        path = self.root / COMMITTED
        if not path.is_file():
            return None
        name, _, seal = path.read_bytes().decode(errors="replace").partition(" ")
        if NAME.match(name) is None or not (self.root / name).is_dir():
            raise CheckpointUnusable(f"{COMMITTED} names {name[:40]!r}, which is not there")
        checkpoint = manifest.read(self.root / name)
        if seal != f"{checkpoint.seal}\n":
            raise CheckpointUnusable(f"{COMMITTED} does not fit {name}")
        return checkpoint

    def _prune(self, committed: Checkpoint) -> None:
        kept = 0
        for checkpoint in reversed(self.list()):
            is_committed = checkpoint.folder == committed.folder
            lost = checkpoint.meta.version == committed.meta.version and not is_committed
            if is_committed or (kept < self.keep and not lost):
                kept += 1
            else:
                _remove(checkpoint.folder)
        for name in self.broken():
            if name < committed.folder.name:
                _remove(self.root / name)
        self._remove_drafts()

    def _remove_drafts(self) -> None:
        for draft in self.root.glob(f"{_DRAFT}*"):
            _remove(draft)

    def _first_whole(
        self, is_wanted: Callable[[int, str | None], bool], otherwise: str, unread: Collection[str] = ()
    ) -> Checkpoint:
        """The newest wanted one that verifies; `is_wanted` gets version and checksum (None: it cannot be read)."""
        faults: list[str] = []
        for name, reason in self.broken().items():
            if is_wanted(int(name[1:9]), None):
                log.warning("checkpoint passed over: %s", reason)
                faults.append(reason)
        for checkpoint in reversed(self.list()):
            if not is_wanted(checkpoint.meta.version, checkpoint.meta.checksum):
                continue
            try:
                checkpoint.verify(unread)
                return checkpoint
            except CheckpointUnusable as damage:
                log.warning("checkpoint passed over: %s", damage)
                faults.append(str(damage))
        raise CheckpointUnusable("; ".join([f"{self.root} holds {otherwise}", *faults]))

    def _folders(self) -> "list[Path]":
        if not self.root.is_dir():
            return []
        return [folder for folder in self.root.iterdir() if NAME.match(folder.name)]

    def _next_attempt(self, version: int) -> int:
        matches = [NAME.match(folder.name) for folder in self._folders()]
        return 1 + max((int(m[2]) for m in matches if m and int(m[1]) == version), default=0)


def _read(folder: Path) -> Checkpoint | None:
    try:
        return manifest.read(folder)
    except CheckpointUnusable:
        return None


def _remove(folder: Path) -> None:
    # The manifest goes first: a removal that is cut short leaves an incomplete folder, not a damaged checkpoint.
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)

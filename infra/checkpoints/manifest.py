"""One checkpoint on disk: what it binds together, and how any change of it is found and named.

``MANIFEST.json`` lists the sha256 and size of every other file; ``MANIFEST.sha256`` seals it, in the format of
``sha256sum -c``. So each byte of the set is under a digest, and a file that is not listed does not belong to it.
"""

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, ValidationError

from infra.checkpoints.durable import file_sha256, sync_file, sync_folder
from workflows.messages.base import Message
from workflows.messages.batch_ledger import BatchLedger
from workflows.messages.errors import CheckpointUnusable
from workflows.messages.training import CheckpointRef

MANIFEST, SEAL = "MANIFEST.json", "MANIFEST.sha256"
NAME = re.compile(r"^v(\d{8})-a(\d{4})$")
"""Of a checkpoint's folder: version and attempt."""
_SEALED = re.compile(rf"^[0-9a-f]{{64}}  {re.escape(MANIFEST)}\n$")


class FileDigest(Message):
    """What one file of a checkpoint must be."""

    sha256: str
    bytes: int


class CheckpointMeta(Message):
    """What a checkpoint binds to its files. `counters` (sample positions, executions) are the caller's, opaque here."""

    version: int = Field(ge=0)
    checksum: str = Field(description="weights checksum")
    optimizer_steps: int = Field(ge=0)
    code_version: str
    trainer: Literal["megatron", "paced"] = Field(default="megatron", description="paced: a double, without moments")
    counters: dict[str, JsonValue] = {}
    ledger: BatchLedger = Field(description="the batch whose update this is, still open when this was written")

    @property
    def batch(self) -> str:
        return self.ledger.batch


class _Manifest(Message):
    meta: CheckpointMeta
    files: dict[str, FileDigest]


class Damage(Message):
    """One file that is not what was written, and in which way."""

    file: str
    fault: str

    def __str__(self) -> str:
        return f"{self.file} {self.fault}"


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint: manifest and seal fit. Whether its files do is for `damage` and `verify` to say."""

    folder: Path
    attempt: int
    meta: CheckpointMeta
    files: dict[str, FileDigest]
    seal: str
    """sha256 of the manifest, and so of the whole set."""

    @property
    def ref(self) -> CheckpointRef:
        return CheckpointRef(name=self.folder.name, version=self.meta.version, checksum=self.meta.checksum)

    @property
    def bytes(self) -> int:
        """Of its files, without the manifest."""
        return sum(digest.bytes for digest in self.files.values())

    def damage(self, unread: Collection[str] = ()) -> tuple[Damage, ...]:
        """Everything that is not as it was written, by file. Files are hashed but for `unread`, which need only be
        there in their size; manifest and seal always have to fit, and no stranger may be there."""
        found = [
            Damage(file=name, fault=fault)
            for name, digest in sorted(self.files.items())
            if (fault := _fault(self.folder / name, digest, is_read=name not in unread))
        ]
        present = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set[str]()
        strangers = present - self.files.keys() - {MANIFEST, SEAL}
        found += [Damage(file=name, fault="does not belong to it") for name in sorted(strangers)]
        return (*found, *seal_damage(self.folder))

    def verify(self, unread: Collection[str] = ()) -> None:
        """Raises CheckpointUnusable, naming every file at fault, unless all is as it was written; see `damage`."""
        if found := self.damage(unread):
            raise CheckpointUnusable(f"{self.folder.name}: {'; '.join(map(str, found))}")


def finish(folder: Path, meta: CheckpointMeta) -> None:
    """Make the files in `folder` durable and bind them: the manifest, then its seal, are written last."""
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    files = {path.name: FileDigest(sha256=file_sha256(path), bytes=path.stat().st_size) for path in paths}
    manifest = folder / MANIFEST
    manifest.write_text(_Manifest(meta=meta, files=files).model_dump_json(indent=1) + "\n")
    seal = folder / SEAL
    seal.write_text(f"{file_sha256(manifest)}  {MANIFEST}\n")
    for path in (*paths, manifest, seal):
        sync_file(path)
    sync_folder(folder)


def read(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`. Raises CheckpointUnusable if its name, manifest or seal say that it is not whole."""
    match = NAME.match(folder.name)
    if match is None:
        raise CheckpointUnusable(f"{folder.name} is not the name of a checkpoint")
    if not folder.is_dir():
        raise CheckpointUnusable(f"there is no checkpoint {folder.name}")
    if found := seal_damage(folder):
        raise CheckpointUnusable(f"{folder.name}: {'; '.join(map(str, found))}")
    blob = (folder / MANIFEST).read_bytes()
    try:
        manifest = _Manifest.model_validate_json(blob)
    except ValidationError as error:
        reason = str(error)[:200]
        raise CheckpointUnusable(f"{folder.name}: {MANIFEST} is of another kind: {reason}") from error
    if manifest.meta.version != int(match[1]):
        raise CheckpointUnusable(f"{folder.name}: {MANIFEST} is of version {manifest.meta.version}")
    return Checkpoint(folder, int(match[2]), manifest.meta, manifest.files, hashlib.sha256(blob).hexdigest())


def seal_damage(folder: Path) -> tuple[Damage, ...]:
    """What is wrong with manifest and seal; where they contradict each other, either may be the damaged one."""
    missing = [name for name in (MANIFEST, SEAL) if not (folder / name).is_file()]
    if missing:
        return tuple(Damage(file=name, fault="is missing") for name in missing)
    text = (folder / SEAL).read_bytes().decode(errors="replace")
    if not _SEALED.match(text):
        return (Damage(file=SEAL, fault="is damaged"),)
    if text[:64] != file_sha256(folder / MANIFEST):
        return (Damage(file=MANIFEST, fault=f"is not the one that {SEAL} seals"),)
    return ()


def _fault(path: Path, digest: FileDigest, *, is_read: bool) -> str:
    if not path.is_file():
        return "is missing"
    if (size := path.stat().st_size) != digest.bytes:
        return f"has {size} bytes instead of {digest.bytes}"
    return "" if not is_read or file_sha256(path) == digest.sha256 else "holds other bytes than were written"

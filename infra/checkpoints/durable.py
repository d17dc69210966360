"""Making files last: fsync of files and folders, and a JSON file that is replaced in one step."""

import hashlib
import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make the entries of `folder` (names, renames) durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the contents of `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Write `path` so that a reader, or a crash, sees the old text or the new, durable one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    sync_file(draft)
    os.replace(draft, path)
    sync_folder(path.parent)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

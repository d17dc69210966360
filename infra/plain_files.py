"""Reading files whose names an agent's processes could write: whatever is there now, reading ends and never waits.

A FIFO would hold up whoever opens it, a device has no end, a link leads anywhere: only plain files are opened.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_plain(path: Path) -> BinaryIO:
    """A plain file, opened for reading. Raises OSError for anything else, a symbolic link among it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path.name} is not a plain file")
    return os.fdopen(descriptor, "rb")


def read_plain(path: Path, limit_bytes: int) -> bytes:
    """All of a plain file. Raises OSError for anything else, and for one that is larger than the limit."""
    with open_plain(path) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(f"{path.name} is larger than {limit_bytes} bytes")
    return data

"""Plain facts about a tensor or array: its address, length, type and checksum.

Works on torch tensors and numpy arrays alike by their own attributes, so that neither has to be imported here.
"""

import ctypes
import zlib
from collections.abc import Mapping
from typing import Any, Protocol

from workflows.messages.errors import InvalidInput
from workflows.messages.transfer import BufferEntry, BufferManifest


class Buffer(Protocol):
    """A contiguous torch tensor or numpy array."""

    @property
    def nbytes(self) -> int: ...

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


def address_of(buffer: Buffer) -> int:
    """First byte's virtual address. Raises InvalidInput for memory with gaps."""
    if hasattr(buffer, "data_ptr"):
        contiguous, address = buffer.is_contiguous(), buffer.data_ptr()  # pyright: ignore[reportAttributeAccessIssue]
    else:
        contiguous = buffer.flags.c_contiguous  # pyright: ignore[reportAttributeAccessIssue]
        address = buffer.ctypes.data  # pyright: ignore[reportAttributeAccessIssue]
    if not contiguous:
        raise InvalidInput("only contiguous memory can be transferred", field="buffer")
    return address


def dtype_name(buffer: Buffer) -> str:
    """``float32`` for torch.float32 and numpy.float32 alike."""
    return str(buffer.dtype).removeprefix("torch.")


def checksum(buffer: Buffer) -> int:
    """CRC-32 of the bytes (about 7 GB/s). It guards against torn and truncated reads, not against an adversary."""
    if getattr(getattr(buffer, "device", None), "type", "cpu") != "cpu":
        buffer = buffer.cpu()  # pyright: ignore[reportAttributeAccessIssue]
    if buffer.nbytes == 0:
        return zlib.crc32(b"")
    view = (ctypes.c_char * buffer.nbytes).from_address(address_of(buffer))
    return zlib.crc32(view)


def entry_of(name: str, buffer: Buffer) -> BufferEntry:
    return BufferEntry(
        name=name,
        address=address_of(buffer),
        bytes=buffer.nbytes,
        dtype=dtype_name(buffer),
        shape=tuple(buffer.shape),
        crc32=checksum(buffer),
    )


def manifest_of(session: str, buffers: Mapping[str, Buffer], *, version: int, boot_epoch: int) -> BufferManifest:
    """Describe `buffers` as they are now. They must be registered, and stay unchanged until the last reader is done."""
    entries = tuple(entry_of(name, buffer) for name, buffer in buffers.items())
    return BufferManifest(session=session, version=version, boot_epoch=boot_epoch, entries=entries)

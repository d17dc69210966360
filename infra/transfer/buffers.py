"""Plain facts about a tensor or array: its address, length, type and checksum.

Works on torch tensors and numpy arrays alike by their own attributes, so that neither has to be imported here.
"""

import ctypes
from collections.abc import Mapping
from typing import Any, Protocol

from xxhash import xxh3_64_intdigest

from workflows.messages.errors import InvalidInput
from workflows.messages.transfer import BufferEntry, BufferManifest

_READ_ONLY = 0x100
_view_of_memory = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


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


def bytes_at(address: int, length: int) -> memoryview:
    """Memory of this process as it lies, not copied; whoever looks at it keeps its owner alive."""
    return _view_of_memory(address, length, _READ_ONLY)


def is_on_host(buffer: Buffer) -> bool:
    """Whether this process can look at its bytes as they lie."""
    return getattr(getattr(buffer, "device", None), "type", "cpu") == "cpu"


def checksum(buffer: Buffer) -> int:
    """64-bit XXH3 of the bytes. It guards against torn and truncated reads, not against an adversary."""
    if not is_on_host(buffer):
        buffer = buffer.cpu()  # pyright: ignore[reportAttributeAccessIssue]
    return xxh3_64_intdigest(bytes_at(address_of(buffer), buffer.nbytes) if buffer.nbytes else b"")


def entry_of(name: str, buffer: Buffer) -> BufferEntry:
    return BufferEntry(
        name=name,
        address=address_of(buffer),
        bytes=buffer.nbytes,
        dtype=dtype_name(buffer),
        shape=tuple(buffer.shape),
        xxh3=checksum(buffer),
    )


def manifest_of(session: str, buffers: Mapping[str, Buffer], *, version: int, boot_epoch: int) -> BufferManifest:
    """Describe `buffers` as they are now. They must be registered, and stay unchanged until the last reader is done."""
    entries = tuple(entry_of(name, buffer) for name, buffer in buffers.items())
    return BufferManifest(session=session, version=version, boot_epoch=boot_epoch, entries=entries)

"""The control message beside a one-sided read: where the bytes lie and what they must hash to.

The transfer engine itself knows neither versions nor checksums, and a source that is overwritten while it is read
gives a torn read with return code 0. So every read is described by a manifest and verified against it.
"""

from pydantic import Field, model_validator

from workflows.messages.base import Message


class BufferEntry(Message):
    """One named, contiguous buffer in the source process.

    `address` is a virtual address there, `bytes` its length, `dtype` a plain name such as ``float32`` and `xxh3`
    the 64-bit XXH3 of its bytes at the time the manifest was made.
    """

    name: str = Field(min_length=1)
    address: int = Field(ge=0)
    bytes: int = Field(ge=0)
    dtype: str
    shape: tuple[int, ...]
    xxh3: int = Field(ge=0, lt=2**64)


class BufferManifest(Message):
    """Everything a reader needs to fetch a set of named buffers and to trust what it got.

    `session` is the source's transfer session (``host:port``; a restarted source has a new one), `version` the weight
    version (or whatever the caller numbers), `boot_epoch` the source's boot epoch, for fencing.
    """

    session: str = Field(pattern=r"^[^\s:]+:\d+$")
    version: int = Field(ge=0)
    boot_epoch: int = Field(ge=0)
    entries: tuple[BufferEntry, ...]

    @model_validator(mode="after")
    def _names_are_unique(self) -> "BufferManifest":
        names = [entry.name for entry in self.entries]
        if len(set(names)) != len(names):
            raise ValueError("entries: names must be unique")
        return self

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

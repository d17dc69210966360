"""The run's object store, by URL (a folder by default): put once, get verified.

Keys are relative (``micro-steps/<batch>/3.safetensors``). A put is atomic and idempotent; a get checks the sha256
that its reference promises.
"""

import hashlib
from pathlib import Path

import obstore
from obstore.store import LocalStore, from_url

from workflows.messages.artifacts import ArtifactRef
from workflows.messages.errors import ChecksumMismatch


class ObjectStore:
    """Blobs of one run. Thread-safe."""

    def __init__(self, url: str) -> None:
        if url.startswith("file://"):
            folder = Path(url.removeprefix("file://"))
            folder.mkdir(parents=True, exist_ok=True)
            self._store = LocalStore(folder, mkdir=True)
        else:
            self._store = from_url(url)

    def put(self, uri: str, data: bytes) -> ArtifactRef:
        """Store `data` under `uri` and return its reference."""
        obstore.put(self._store, uri, data)
        return ArtifactRef(uri=uri, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))

    def get(self, ref: ArtifactRef) -> bytes:
        """The bytes of `ref`. Raises ChecksumMismatch if they are other bytes, FileNotFoundError if gone."""
        data = bytes(obstore.get(self._store, ref.uri).bytes())
        if len(data) != ref.bytes or hashlib.sha256(data).hexdigest() != ref.sha256:
            raise ChecksumMismatch(f"{ref.uri}: stored bytes differ from the reference")
        return data

    def read(self, uri: str) -> bytes:
        """Whatever lies at `uri`, unverified: for the audit, which checks it itself. FileNotFoundError if gone."""
        return bytes(obstore.get(self._store, uri).bytes())

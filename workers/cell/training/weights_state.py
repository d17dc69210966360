"""Which weights the model holds, and where they came from.

Invariant: `held` is None from the moment the parameters begin to change until they are known good again, so an
interrupted load or update is never taken for a version.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from workflows.messages.errors import VersionMismatch


@dataclass(frozen=True)
class HeldWeights:
    """A version and its weights checksum."""

    version: int
    checksum: str


class WeightsState:
    """Guards the parameters: changing them and copying them exclude each other."""

    def __init__(self) -> None:
        self.held: HeldWeights | None = None
        self._lock = threading.RLock()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Around everything that writes parameters; end it by `now_hold`."""
        with self._lock:
            self.held = None
            yield

    @contextmanager
    def reading(self, version: int, checksum: str | None = None) -> Iterator[HeldWeights]:
        """Around everything that copies parameters. Raises VersionMismatch unless they are the version wanted."""
        with self._lock:
            yield self.require(version, checksum)

    @property
    def checksum(self) -> str:
        """Of what is held; empty while nothing is."""
        held = self.held
        return "" if held is None else held.checksum

    def now_hold(self, version: int, checksum: str) -> HeldWeights:
        self.held = HeldWeights(version, checksum)
        return self.held

    def require(self, version: int, checksum: str | None = None) -> HeldWeights:
        """What is held, if it is `version` (and `checksum`, if given). Raises VersionMismatch."""
        held = self.held
        if held is None:
            raise VersionMismatch(f"no verified weights are held; version {version} is wanted")
        if held.version != version or checksum not in (None, held.checksum):
            raise VersionMismatch(
                f"version {held.version} ({held.checksum[:12]}) is held, {version} ({(checksum or 'any')[:12]}) wanted"
            )
        return held

"""Asynchronous client of a KV linker's control port; the exceptions are those the linker raised, by name."""

from typing import TypeVar

import httpx2

from workflows.messages import errors
from workflows.messages.base import Message
from workflows.messages.kv import (
    KvManifest,
    LeaseEnded,
    LeaseRequest,
    LinkerStats,
    Pull,
    Pulled,
    Retain,
    Retained,
)

Answer = TypeVar("Answer", bound=Message)

_RAISED = (
    errors.Fenced,
    errors.InvalidInput,
    errors.StillHeld,
    errors.TransferFailed,
    errors.EngineUnavailable,
)


class LinkerClient:
    """One linker at ``http://127.0.0.1:port``. Every call raises EngineUnavailable when the engine does not answer."""

    def __init__(self, base_url: str, token: str, *, control_seconds: float = 15.0) -> None:
        self.base_url, self._seconds = base_url.rstrip("/"), control_seconds
        self._http = httpx2.AsyncClient(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(control_seconds, connect=5.0),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def retain(self, lease: int, sessions: tuple[str, ...] | None, *, hold_seconds: float = 60.0) -> Retained:
        """Pin the sessions' latest prefixes (None: of all) from now on. Raises Fenced for an older lease."""
        request = Retain(lease=lease, sessions=sessions, hold_seconds=hold_seconds)
        return await self._call("/retain", request, Retained)

    async def manifest(self, lease: int) -> KvManifest:
        """Once writes have stopped: what there is to read. Raises Fenced when the lease has ended."""
        return await self._call("/manifest", LeaseRequest(lease=lease), KvManifest)

    async def pull(
        self, manifest: KvManifest, sessions: tuple[str, ...] | None = None, *, timeout_seconds: float = 20.0
    ) -> Pulled:
        """At the destination: read and verify. Raises TransferFailed; what is missing is then simply recomputed."""
        request = Pull(manifest=manifest, sessions=sessions, timeout_seconds=timeout_seconds)
        return await self._call("/pull", request, Pulled, timeout_seconds + self._seconds)

    async def acknowledge(self, lease: int) -> LeaseEnded:
        """At the source: the copy is verified, unpin. `released` is True once; repeating it changes nothing."""
        return await self._call("/acknowledge", LeaseRequest(lease=lease), LeaseEnded)

    async def release(self, lease: int, *, abandon: bool = False) -> LeaseEnded:
        """Make sure that a lease is over. Raises StillHeld before acknowledgement or expiry, unless `abandon`."""
        return await self._call("/release", LeaseRequest(lease=lease, abandon=abandon), LeaseEnded)

    async def stats(self) -> LinkerStats:
        return await self._call("/stats", None, LinkerStats)

    async def _call(
        self, path: str, request: Message | None, answer: type[Answer], seconds: float | None = None
    ) -> Answer:
        timeout = httpx2.Timeout(seconds or self._seconds, connect=5.0)
        content = None if request is None else request.model_dump_json().encode()
        try:
            response = await self._http.request(
                "GET" if request is None else "POST", path, content=content, timeout=timeout
            )
        except httpx2.HTTPError as error:
            raise errors.EngineUnavailable(f"{self.base_url}{path}: {error or type(error).__name__}") from error
        if response.status_code != 200:
            raise _raised(path, response)
        return answer.model_validate_json(response.content)


def _raised(path: str, response: httpx2.Response) -> errors.GyreError:
    try:
        body = response.json()
        kind, text = str(body["kind"]), str(body["error"])
    except (ValueError, KeyError, TypeError):
        kind, text = "EngineUnavailable", response.text[:300]
    found = next((each for each in _RAISED if each.__name__ == kind), errors.EngineUnavailable)
    return found(f"{path}: {text}")

"""Async client of a training actor, for activities. One call, one attempt: retries belong to Temporal.

Every method may raise what the actor raised (Fenced, VersionMismatch, InvalidInput, StillHeld, TransferFailed, ...) and
ActorUnavailable if it does not answer in time, is gone, or refuses the key.
"""

from typing import Self, TypeVar, cast

import httpx2 as httpx

from infra.actor.wire import ROUTES, exception_of
from workflows.messages import training as m
from workflows.messages.base import Message
from workflows.messages.errors import ActorUnavailable

R = TypeVar("R", bound=Message)


class ActorClient:
    """`url` as in ``http://127.0.0.1:21000``. Use as an async context manager, or call `close`.

    `timeout_seconds` is for calls that compute; a caller's cancellation also gives up a micro-step that still queues.
    """

    def __init__(self, url: str, key: str, *, timeout_seconds: float = 300.0) -> None:
        self.url = url
        self._timeout_seconds = timeout_seconds
        self._http = httpx.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=timeout_seconds, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def status(self, timeout_seconds: float = 5.0) -> m.ActorStatus:
        """Answers also while the actor computes."""
        response = await self._send("GET", "/status", None, timeout_seconds)
        return m.ActorStatus.model_validate_json(response)

    async def restore_base(self, request: m.RestoreBase) -> m.RestoreReply:
        return await self._call("restore_base", request, m.RestoreReply)

    async def restore_checkpoint(self, request: m.RestoreCheckpoint) -> m.RestoreReply:
        return await self._call("restore_checkpoint", request, m.RestoreReply)

    async def lay_down(self, request: m.LayDown) -> m.ResourceReply:
        return await self._call("lay_down", request, m.ResourceReply)

    async def expose_snapshot(self, request: m.ExposeSnapshot) -> m.SnapshotReply:
        return await self._call("expose_snapshot", request, m.SnapshotReply)

    async def release_snapshot(self, request: m.ReleaseSnapshot) -> m.ResourceReply:
        return await self._call("release_snapshot", request, m.ResourceReply)

    async def pull_snapshot(self, request: m.PullSnapshot) -> m.WeightsReply:
        return await self._call("pull_snapshot", request, m.WeightsReply)

    async def export(self, request: m.ExportWeights) -> m.ExportReply:
        return await self._call("export", request, m.ExportReply)

    async def resume(self, request: m.Resume) -> m.ResourceReply:
        return await self._call("resume", request, m.ResourceReply)

    async def release(self, request: m.Release) -> m.ResourceReply:
        return await self._call("release", request, m.ResourceReply)

    async def open_batch(self, request: m.OpenBatch) -> m.BatchReply:
        return await self._call("open_batch", request, m.BatchReply)

    async def run_micro_step(self, request: m.RunMicroStep) -> m.MicroStepReply:
        return await self._call("run_micro_step", request, m.MicroStepReply)

    async def seal(self, request: m.BatchRequest) -> m.SealReply:
        return await self._call("seal", request, m.SealReply)

    async def contribute(self, request: m.Contribute) -> m.BatchReply:
        return await self._call("contribute", request, m.BatchReply)

    async def combine(self, request: m.Combine) -> m.CombineReply:
        return await self._call("combine", request, m.CombineReply)

    async def take_back(self, request: m.BatchRequest) -> m.BatchReply:
        return await self._call("take_back", request, m.BatchReply)

    async def commit(self, request: m.Commit) -> m.BatchReply:
        return await self._call("commit", request, m.BatchReply)

    async def discard(self, request: m.BatchRequest) -> m.BatchReply:
        return await self._call("discard", request, m.BatchReply)

    async def replay_logprobs(self, request: m.ReplayLogprobs) -> m.ReplayReply:
        return await self._call("replay_logprobs", request, m.ReplayReply)

    async def _call(self, name: str, request: m.ActorRequest, reply: type[R]) -> R:
        if ROUTES[name] != (type(request), reply):
            raise TypeError(f"{name} takes {ROUTES[name][0].__name__}, not {type(request).__name__}")
        content = request.model_dump_json().encode()
        body = await self._send("POST", f"/{name}", content, self._timeout_seconds)
        return cast(R, reply.model_validate_json(body))

    async def _send(self, method: str, path: str, content: bytes | None, timeout_seconds: float) -> bytes:
        try:
            response = await self._http.request(
                method, path, content=content, headers={"content-type": "application/json"}, timeout=timeout_seconds
            )
        except httpx.TransportError as error:
            reason = type(error).__name__
            raise ActorUnavailable(f"training actor at {self.url} did not answer {path}: {reason}") from error
        if response.status_code == 200:
            return response.content
        try:
            body = response.json()
        except ValueError:
            body = None
        raise exception_of(response.status_code, body)

"""Asynchronous client of one rollout engine: SGLang's native HTTP API, without any retry of its own.

Every call either returns typed data or raises from the one exception tree: EngineUnavailable for anything that may heal
(refused connection, 5xx, a stream that ends early), InvalidRequest for what the engine must never be sent again,
StillHeld and VersionMismatch where the engine says so. A 200 alone is never taken as proof of a release or a publish.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, Self

import httpx2
import orjson

from infra.engine.generation import ChunkReader, EngineRefused, GenerateChunk, GenerateRequest, check_rid, refusal
from infra.engine.release import EngineLoads
from infra.engine.streams import HttpStreams, StreamBroken, Streams
from workflows.messages.errors import EngineUnavailable, InvalidRequest, StillHeld, VersionMismatch

_CALLERS_FAULT = (400, 413, 422)
PauseMode = Literal["abort", "retract", "in_place"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What an engine says it serves."""

    model_path: str
    weight_version: str


@dataclass(frozen=True, slots=True)
class EngineChecksum:
    """Checksums of the weights an engine really holds: per parameter of its own naming, and over all of rank 0."""

    tensors: Mapping[str, str]
    total: str


class EngineClient:
    """`vocabulary` is the number of ids the model knows. Bearer `admin_key` opens the control routes.

    `silence_seconds` bounds the wait for the next event of a stream; `control_seconds` every other call. `transport`
    and `streams` replace the sockets of control calls and of generations.
    """

    def __init__(
        self,
        base_url: str,
        *,
        vocabulary: int,
        admin_key: str | None = None,
        control_seconds: float = 30.0,
        silence_seconds: float = 300.0,
        max_connections: int = 256,
        transport: httpx2.AsyncBaseTransport | None = None,
        streams: Streams | None = None,
    ) -> None:
        self.base_url, self.vocabulary = base_url.rstrip("/"), vocabulary
        self._control_seconds = control_seconds
        headers = {"Authorization": f"Bearer {admin_key}"} if admin_key else {}
        self._streams = streams or HttpStreams(self.base_url, headers, silence_seconds)
        self._http = httpx2.AsyncClient(
            base_url=self.base_url,
            headers=headers,
            timeout=httpx2.Timeout(control_seconds, connect=5.0),
            limits=httpx2.Limits(max_connections=max_connections, max_keepalive_connections=32),
            transport=transport,
            trust_env=False,
            verify=base_url.startswith("https"),  # reading the trust store costs 40 ms
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._streams.close()
        await self._http.aclose()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        """Stream one generation; the last chunk, and only that, has `finish`.

        Raises InvalidRequest if the request is refused, EngineUnavailable if the stream ends before its finish: what
        was yielded so far is real and may be continued elsewhere. Leaving the iterator early drops the connection,
        which the engine notices only after seconds: call `abort` with the rid.
        """
        body, reader, finished = orjson.dumps(request.body(self.vocabulary)), ChunkReader(), False
        try:
            async with self._streams.post("/generate", body) as answer:
                if answer.status != 200:
                    content = b"".join([part async for part in answer.parts()])
                    raise _failure("/generate", answer.status, content, answer.retry_after)
                rest = b""
                async for part in answer.parts():
                    *lines, rest = (rest + part).split(b"\n")
                    for line in lines:
                        if finished or not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                            continue
                        chunk = reader.read(orjson.loads(line[6:]))
                        finished = chunk.finish is not None
                        yield chunk
        except (StreamBroken, ValueError, KeyError, TypeError, AttributeError) as error:
            if not finished:
                raise EngineUnavailable(f"{self.base_url}/generate: {error or type(error).__name__}") from error
        if not finished:
            raise EngineUnavailable(f"{self.base_url}/generate ended before its last token")

    async def abort(self, rid: str) -> None:
        """Abort exactly one request; unknown ids are ignored. Refuses ids not of the one fixed form (InvalidRequest):
        SGLang aborts every request whose id starts with the one it is given, and an empty one is dangerous."""
        await self._post("/abort_request", {"rid": check_rid(rid)})

    async def abort_all(self) -> None:
        """Abort every request, also those of others: only where nobody reads any."""
        await self._post("/abort_request", {"rid": "", "abort_all": True})

    async def pause(self, mode: PauseMode = "abort") -> None:
        """Stop generating; new requests wait at the engine until `resume`. ``abort`` ends the running ones,
        ``in_place`` keeps their KV (a flush is then refused), ``retract`` drops it and recomputes."""
        await self._post("/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        await self._post("/continue_generation", {})

    async def update_weights_from_disk(
        self,
        model_path: str,
        version: str,
        *,
        flush_cache: bool = True,
        abort_all_requests: bool = False,
        timeout_seconds: float = 300.0,
    ) -> None:
        """Load a folder in Hugging Face layout and call it `version`. Waits for running requests unless paused.

        Raises VersionMismatch if the engine refuses. A wrong shape kills the engine: check names and shapes before.
        Verify with `weights_checksum` afterwards.
        """
        body = {
            "model_path": model_path,
            "weight_version": version,
            "flush_cache": flush_cache,
            "abort_all_requests": abort_all_requests,
        }
        response = await self._send("POST", "/update_weights_from_disk", body, timeout_seconds)
        answer = _json(response)
        if response.status_code == 400 or not answer.get("success", False):
            raise VersionMismatch(f"{self.base_url} did not load {version!r}: {answer.get('message', response.text)}")

    async def set_weight_version(self, version: str) -> None:
        """Rename the loaded weights without loading anything or aborting anyone."""
        await self._post("/update_weight_version", {"new_version": version, "abort_all_requests": False})

    async def weights_checksum(self) -> EngineChecksum:
        """What the engine holds now. Compare with `fingerprint.engine_checksums` of what it should hold."""
        answer = await self._post("/weights_checker", {"action": "checksum"})
        rank = answer["ranks"][0]
        return EngineChecksum(tensors=rank["checksums"], total=rank["per_gpu_checksum"])

    async def model_info(self) -> ModelInfo:
        answer = await self._get("/model_info")
        return ModelInfo(model_path=answer["model_path"], weight_version=str(answer["weight_version"]))

    async def release_memory(self, tags: tuple[str, ...] = ()) -> None:
        """Ask for memory (``weights``, ``kv_cache``; empty: all) to be given back. The answer proves nothing (on CPU it
        frees nothing at all): check with `released`. The engine must be idle or paused."""
        await self._post("/release_memory_occupation", {"tags": list(tags)} if tags else {})

    async def resume_memory(self, tags: tuple[str, ...] = ()) -> None:
        """Take memory again. Weights are garbage until they are loaded anew."""
        await self._post("/resume_memory_occupation", {"tags": list(tags)} if tags else {})

    async def flush_cache(self, wait_seconds: float = 0.0) -> None:
        """Drop all cached KV. Raises StillHeld while requests run or wait, after waiting `wait_seconds` for them."""
        path = f"/flush_cache?timeout={wait_seconds}"
        response = await self._send("POST", path, None, self._control_seconds + wait_seconds)
        if response.status_code == 400:
            raise StillHeld(f"{self.base_url} did not flush: {response.text.strip()}")
        _check(path, response)

    async def constrains(self) -> bool:
        """Whether it can follow a grammar: its server arguments name a grammar backend."""
        backend = (await self._get("/server_info")).get("grammar_backend")
        return backend not in (None, "", "none")

    async def loads(self) -> EngineLoads:
        return EngineLoads.of_answer(await self._get("/v1/loads"))

    async def healthy(self) -> bool:
        """Whether the server answers and has started; never raises. `loads` asks the scheduler behind it as well."""
        try:
            return (await self._send("GET", "/health", None, 5.0)).status_code == 200
        except EngineUnavailable:
            return False

    async def _get(self, path: str) -> dict[str, Any]:
        return _json(_check(path, await self._send("GET", path, None, self._control_seconds)))

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return _json(_check(path, await self._send("POST", path, body, self._control_seconds)))

    async def _send(self, method: str, path: str, body: dict[str, Any] | None, seconds: float) -> httpx2.Response:
        try:
            return await self._http.request(method, path, json=body, timeout=httpx2.Timeout(seconds, connect=5.0))
        except httpx2.HTTPError as error:
            raise EngineUnavailable(f"{self.base_url}{path}: {error or type(error).__name__}") from error


def _check(path: str, response: httpx2.Response) -> httpx2.Response:
    if response.status_code != 200:
        raise _failure(path, response.status_code, response.content, response.headers.get("retry-after"))
    return response


def _failure(
    path: str, status: int, content: bytes, retry_after: str | None = None
) -> InvalidRequest | EngineUnavailable:
    """What says that the request itself is wrong is the caller's fault; all else, also a missing route or a refused
    key, is this engine's, and another one may well answer."""
    try:
        error: Any = json.loads(content)
        error = error.get("error", error) if isinstance(error, dict) else error
    except ValueError:
        error = content.decode(errors="replace")[:500]
    if status in _CALLERS_FAULT:
        found = refusal(error)
        return found if isinstance(found, InvalidRequest) else InvalidRequest(str(found))
    return EngineRefused(f"{path} answered {status}: {error}", retry_after_seconds(retry_after))


def retry_after_seconds(header: str | None) -> float | None:
    """Seconds a ``Retry-After`` header asks for, written as a number or as an HTTP date; None if it says nothing."""
    if not header:
        return None
    text = header.strip()
    if text.isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _json(response: httpx2.Response) -> dict[str, Any]:
    """Some control routes answer 200 with an empty body or null."""
    try:
        answer = json.loads(response.content or b"{}")
    except ValueError as error:
        raise EngineUnavailable(f"an engine answered no JSON: {response.text[:200]}") from error
    return answer if isinstance(answer, dict) else {}

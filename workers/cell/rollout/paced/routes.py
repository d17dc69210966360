"""SGLang's native routes over the paced engine, and `/faults`."""

import hmac
import json
from collections.abc import AsyncIterator
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from workers.cell.rollout.paced.chat import chat_routes
from workers.cell.rollout.paced.engine import PacedEngine
from workers.cell.rollout.paced.faults import Fault, FaultKind
from workers.cell.rollout.paced.generation import Generation
from workers.cell.rollout.paced.strikes import finished, struck_at_once
from workflows.messages.errors import InvalidInput, StillHeld

MEMORY_TAGS = frozenset({"kv_cache", "weights", "cuda_graph"})


def paced_app(engine: PacedEngine) -> Starlette:
    """The ASGI application of one engine."""
    return Starlette(routes=_Routes(engine).table())


class _Routes:
    def __init__(self, engine: PacedEngine) -> None:
        self.engine = engine

    def table(self) -> list[Route]:
        post, both = ["POST"], ["GET", "POST"]
        return [
            Route("/generate", self.generate, methods=post),
            Route("/abort_request", self._guarded(self.abort), methods=post),
            Route("/pause_generation", self._guarded(self.pause), methods=post),
            Route("/continue_generation", self._guarded(self.resume), methods=post),
            Route("/update_weights_from_disk", self._guarded(self.update_weights), methods=post),
            Route("/update_weight_version", self._guarded(self.update_version), methods=post),
            Route("/weights_checker", self._guarded(self.weights_checker), methods=both),
            Route("/release_memory_occupation", self._guarded(self.release), methods=both),
            Route("/resume_memory_occupation", self._guarded(self.take_back), methods=both),
            Route("/flush_cache", self._guarded(self.flush), methods=both),
            Route("/model_info", self.model_info),
            Route("/get_model_info", self.model_info),
            Route("/server_info", self.server_info),
            Route("/get_server_info", self.server_info),
            Route("/v1/loads", self.loads),
            Route("/health", self.health),
            Route("/health_generate", self.health),
            Route("/faults", self.list_faults, methods=["GET"]),
            Route("/faults", self.arm_fault, methods=post),
            Route("/faults", self.clear_faults, methods=["DELETE"]),
            *chat_routes(self.engine),
        ]

    def _guarded(self, endpoint):
        async def checked(request: Request) -> Response:
            key = self.engine.settings.admin_api_key
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if key and not hmac.compare_digest(given.encode(), key.encode()):
                return JSONResponse({"error": "Unauthorized"}, status_code=401)
            return await endpoint(request)

        return checked

    async def generate(self, request: Request) -> Response:
        body = await _body(request)
        try:
            generation = self.engine.new_generation(body)
        except InvalidInput as error:
            return _refused(str(error))
        struck = await struck_at_once(generation, request)
        if struck is not None:
            return struck
        if body.get("stream"):
            return StreamingResponse(self._events(generation), media_type="text/event-stream")
        try:
            await finished(self.engine, generation)
        finally:
            self.engine.abandoned(generation)
        return JSONResponse(generation.answer(self.engine.version))

    async def _events(self, generation: Generation) -> AsyncIterator[bytes]:
        incremental, sent, fault = self.engine.settings.incremental, 0, generation.fault
        clump = fault.tokens if fault is not None and fault.kind is FaultKind.CLUMP else 1
        least = max(clump, self.engine.settings.stream_interval)
        closing = (FaultKind.CLOSE, FaultKind.CLOSE_DONE, FaultKind.TORN)
        try:
            await self.engine.submit(generation)
            while True:
                await generation.changed.wait()
                generation.changed.clear()
                over, said = generation.finish is not None, len(generation.output)
                if fault is not None and generation.fault_is(*closing):
                    over, said = False, min(said, fault.after_tokens)
                if not over and said - sent < least and not generation.fault_is(*closing):
                    continue
                if said > sent or over:
                    answer = generation.answer(self.engine.version, since=sent if incremental else None, upto=said)
                    if not over:
                        answer["meta_info"]["finish_reason"] = None
                    yield b"data: " + json.dumps(answer).encode() + b"\n\n"
                    sent = said
                if generation.fault_is(FaultKind.TORN):
                    yield b'data: {"output_ids": [1, 2'
                    return
                if generation.fault_is(FaultKind.CLOSE) or (over and generation.fault_is(FaultKind.NO_DONE)):
                    return
                if over or generation.fault_is(FaultKind.CLOSE_DONE):
                    break
            yield b"data: [DONE]\n\n"
        finally:
            self.engine.abandoned(generation)

    async def abort(self, request: Request) -> Response:
        body = await _body(request)
        self.engine.abort(str(body.get("rid") or ""), bool(body.get("abort_all")))
        return Response(status_code=200)

    async def pause(self, request: Request) -> Response:
        try:
            self.engine.pause((await _body(request)).get("mode") or "abort")
        except InvalidInput as error:
            return _refused(str(error))
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, request: Request) -> Response:
        self.engine.resume()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def update_weights(self, request: Request) -> Response:
        body = await _body(request)
        paused = len(self.engine.running) if self.engine.paused else 0
        version = body.get("weight_version")
        try:
            await self.engine.load(
                str(body.get("model_path") or ""),
                None if version is None else str(version),
                flush=body.get("flush_cache", True),
                abort_all=bool(body.get("abort_all_requests")),
            )
        except (InvalidInput, StillHeld) as error:
            return JSONResponse({"success": False, "message": str(error), "num_paused_requests": 0}, status_code=400)
        message = "Succeeded to update model weights."
        return JSONResponse({"success": True, "message": message, "num_paused_requests": paused})

    async def update_version(self, request: Request) -> Response:
        body = await _body(request)
        if body.get("abort_all_requests", True):
            self.engine.abort(abort_all=True)
        self.engine.version = version = str(body.get("new_version"))
        text = f"Weight version updated to {version}"
        return JSONResponse({"success": True, "message": text, "new_version": version})

    async def weights_checker(self, request: Request) -> Response:
        action = (await _body(request)).get("action", "checksum")
        if action != "checksum":
            return JSONResponse({"success": False, "message": f"no action {action}"}, status_code=400)
        rank = {"checksums": {"model": self.engine.checksum}, "per_gpu_checksum": self.engine.checksum}
        body = {"success": True, "message": "Success.", "ranks": [rank], "per_engine_checksum": self.engine.checksum}
        return JSONResponse(body)

    async def release(self, request: Request) -> Response:
        try:
            self.engine.release(set((await _body(request)).get("tags") or MEMORY_TAGS))
        except StillHeld as error:
            return _refused(str(error))
        return JSONResponse(None)

    async def take_back(self, request: Request) -> Response:
        self.engine.released -= set((await _body(request)).get("tags") or MEMORY_TAGS)
        return JSONResponse(None)

    async def flush(self, request: Request) -> Response:
        try:
            self.engine.flush()
        except StillHeld as error:
            return PlainTextResponse(f"Flush cache failed: {error}\n", status_code=400)
        return PlainTextResponse("Cache flushed.\n")

    async def model_info(self, request: Request) -> Response:
        engine = self.engine
        return JSONResponse(
            {
                "model_path": engine.model_path,
                "tokenizer_path": engine.settings.model,
                "is_generation": True,
                "weight_version": engine.version,
                "model_type": "paced",
            }
        )

    async def server_info(self, request: Request) -> Response:
        engine = self.engine
        settings = engine.settings.model_dump(exclude={"admin_api_key"})
        state = {"released": sorted(engine.released), "paused": engine.paused, "cached_tokens": len(engine.cache)}
        return JSONResponse(
            {
                **settings,
                "version": "paced",
                "served_model_name": "policy",
                "counts": engine.counts,
                "internal_states": [state],
                "max_total_num_tokens": engine.settings.kv_tokens,
            }
        )

    async def loads(self, request: Request) -> Response:
        engine = self.engine
        running, waiting = len(engine.running), len(engine.waiting)
        load = {
            "dp_rank": 0,
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
            "num_total_reqs": running + waiting,
            "num_used_tokens": engine.used_tokens,
            "max_total_num_tokens": engine.settings.kv_tokens,
            "token_usage": engine.used_tokens / engine.settings.kv_tokens,
            "max_running_requests": engine.settings.slots,
        }
        return JSONResponse({"version": "paced", "accelerator": "paced", "loads": [load]})

    async def health(self, request: Request) -> Response:
        return Response(status_code=200)

    async def list_faults(self, request: Request) -> Response:
        return JSONResponse(self.engine.faults.listed())

    async def arm_fault(self, request: Request) -> Response:
        try:
            self.engine.faults.arm(Fault.model_validate(await _body(request)))
        except ValidationError as error:
            return _refused(str(error))
        return JSONResponse(self.engine.faults.listed())

    async def clear_faults(self, request: Request) -> Response:
        self.engine.faults.clear()
        return JSONResponse([])


async def _body(request: Request) -> dict[str, Any]:
    raw = await request.body()
    value = json.loads(raw) if raw else {}
    return value if isinstance(value, dict) else {}


def _refused(message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=400)

"""OpenAI's chat route over the paced engine, so that other proxies can stand in front of the very same engine.

For comparisons only: our own proxy uses the native routes. One event carries the tokens that were new at a tick.
"""

import json
import time
import uuid
from collections.abc import AsyncIterator
from functools import cached_property
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from infra.tokenizer import ChatTokenizer
from workers.cell.rollout.paced.engine import PacedEngine
from workers.cell.rollout.paced.generation import Generation
from workers.cell.rollout.paced.strikes import finished, struck_at_once
from workflows.messages.errors import InvalidInput, InvalidRequest

MODEL = "policy"
CHARACTERS_PER_ID = 4


def chat_routes(engine: PacedEngine) -> list[Route]:
    """`/v1/chat/completions` and `/v1/models`."""
    routes = _Chat(engine)
    return [
        Route("/v1/chat/completions", routes.completions, methods=["POST"]),
        Route("/v1/models", routes.models, methods=["GET"]),
    ]


class _Chat:
    def __init__(self, engine: PacedEngine) -> None:
        self._engine = engine

    @cached_property
    def _tokenizer(self) -> ChatTokenizer | None:
        """Read at the first request: an engine behind our own proxy never needs it."""
        folder = self._engine.settings.model
        described = bool(folder) and (Path(folder) / "tokenizer_config.json").is_file()
        return ChatTokenizer(folder) if described else None

    async def models(self, request: Request) -> Response:
        entry = {"id": MODEL, "object": "model", "created": 0, "owned_by": "paced"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def completions(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            generation = self._engine.new_generation(self._native(body))
        except (InvalidInput, ValueError, KeyError) as error:
            return JSONResponse({"error": {"message": str(error), "type": "invalid_request_error"}}, status_code=400)
        struck = await struck_at_once(generation, request)
        if struck is not None:
            return struck
        model = str(body.get("model") or MODEL)
        if body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return StreamingResponse(self._events(generation, model, usage), media_type="text/event-stream")
        try:
            await finished(self._engine, generation)
        finally:
            self._engine.abandoned(generation)
        message = {"role": "assistant", "content": self._text(generation.output)}
        choice = {"index": 0, "message": message, "finish_reason": _finish(generation)}
        return JSONResponse({**_head(model, "chat.completion"), "choices": [choice], "usage": _usage(generation)})

    def _native(self, body: dict[str, Any]) -> dict[str, Any]:
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise InvalidRequest("a list of objects is expected", field="messages")
        if self._tokenizer is not None:
            ids = self._tokenizer.render(messages, tools=body.get("tools"))
        else:
            text = json.dumps(messages)
            parts = range(0, len(text), CHARACTERS_PER_ID)
            ids = [3 + hash_of(text[at : at + CHARACTERS_PER_ID]) % (self._engine.vocabulary.size - 3) for at in parts]
        budget = body.get("max_completion_tokens") or body.get("max_tokens")
        sampling = {"ignore_eos": bool(body.get("ignore_eos"))} | ({"max_new_tokens": budget} if budget else {})
        return {"rid": uuid.uuid4().hex, "input_ids": ids, "sampling_params": sampling}

    def _text(self, ids: list[int]) -> str:
        if self._tokenizer is not None:
            return self._tokenizer.decode(ids)
        return "".join(f" t{token}" for token in ids)

    async def _events(self, generation: Generation, model: str, usage: bool) -> AsyncIterator[bytes]:
        head = json.dumps(_head(model, "chat.completion.chunk"))[:-1]
        decoder = self._tokenizer.decode_stream() if self._tokenizer is not None else None
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        sent = 0
        try:
            await self._engine.submit(generation)
            yield _event(head, first)
            while generation.finish is None or sent < len(generation.output):
                if generation.finish is None:
                    await generation.changed.wait()
                    generation.changed.clear()
                new, sent = generation.output[sent:], len(generation.output)
                text = decoder.push(new) if decoder is not None else self._text(new)
                if text:
                    yield _event(head, {"index": 0, "delta": {"content": text}, "finish_reason": None})
            yield _event(head, {"index": 0, "delta": {}, "finish_reason": _finish(generation)})
            if usage:
                yield f'data: {head}, "choices": [], "usage": {json.dumps(_usage(generation))}}}\n\n'.encode()
            yield b"data: [DONE]\n\n"
        finally:
            self._engine.abandoned(generation)


def hash_of(text: str) -> int:
    """A small stable hash: equal text, equal id, in every process."""
    value = 0
    for character in text:
        value = (value * 131 + ord(character)) & 0xFFFFFFFF
    return value


def _head(model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _event(head: str, choice: dict[str, Any]) -> bytes:
    return f'data: {head}, "choices": [{json.dumps(choice)}]}}\n\n'.encode()


def _finish(generation: Generation) -> str:
    kind = (generation.finish or {}).get("type")
    return kind if kind in ("stop", "length") else "stop"


def _usage(generation: Generation) -> dict[str, int]:
    prompt, said = len(generation.prompt), len(generation.output)
    return {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}

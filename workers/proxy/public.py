"""The port harnesses talk to: model calls by one secret token per execution, and nothing else.

The token is in the path (`/x/<token>/v1/...`), the bearer key or the `x-api-key`. An unknown one is 401, one of a
closed execution 410, both in the dialect of the route. No admin route is here.
"""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from harness_adapters.protocol import CallRole
from harness_adapters.registry import adapters
from workers.proxy.broker import Broker
from workers.proxy.call import CallError, ModelRequest
from workers.proxy.dialect import DIALECTS, Dialect, chat_reply, messages_reply, wire
from workers.proxy.executions import Executions, LiveExecution
from workers.proxy.metrics import Metrics
from workers.proxy.reply import Reply, direct, error_response, read_body
from workers.proxy.settings import ProxySettings
from workflows.messages.errors import InvalidRequest

log = logging.getLogger(__name__)
BODY_LIMIT_BYTES = 64 << 20
_ROUTES = {"/chat/completions": "chat", "/responses": "responses", "/messages": "messages"}


def public_app(
    broker: Broker, executions: Executions, settings: ProxySettings, metrics: Metrics, model: str
) -> ASGIApp:
    """The ASGI application of the public port."""
    public = _Public(broker, executions, settings, metrics, model)
    handlers = {404: _no_route, 405: _no_route, ClientDisconnect: _gone}
    return direct(Starlette(routes=public.table(), exception_handlers=handlers))


class _Public:
    def __init__(
        self, broker: Broker, executions: Executions, settings: ProxySettings, metrics: Metrics, model: str
    ) -> None:
        self._broker, self._executions, self._settings = broker, executions, settings
        self._metrics, self._model = metrics, model
        self._adapters = adapters()

    def table(self) -> list[Route]:
        routes: list[Route] = []
        for prefix in ("/x/{token}/v1", "/v1"):
            for path, name in _ROUTES.items():
                routes.append(Route(f"{prefix}{path}", self._answering(DIALECTS[name]), methods=["POST"]))
            routes.append(Route(f"{prefix}/messages/count_tokens", self.count_tokens, methods=["POST"]))
            routes.append(Route(f"{prefix}/models", self.models, methods=["GET"]))
        return routes

    def _answering(self, dialect: Dialect) -> Callable[[Request], Awaitable[Any]]:
        async def answer(request: Request) -> Any:
            execution = self._who(request)
            if isinstance(execution, CallError):
                return self._refuse(error_response(dialect, execution))
            try:
                asked = await self._read(request, dialect, execution)
            except InvalidRequest as error:
                return self._refused(dialect, error)
            if isinstance(asked, Response):
                return self._refuse(asked)
            model = asked.model or self._model
            try:
                call = await self._broker.open(execution, asked)
            except InvalidRequest as error:
                told = dialect.refused_stream(error, model) if asked.stream else None
                if told is not None:
                    return self._refuse(Response(told, media_type="text/event-stream"))
                return self._refused(dialect, error)
            return Reply(
                dialect, call, asked, model, self._settings, self._broker.spell,
                lambda: self._broker.delivered(execution, call),
            )  # fmt: skip

        return answer

    async def count_tokens(self, request: Request) -> Response:
        """Tokens of a messages request, exactly those of the call itself. Needs no engine and records nothing."""
        dialect = DIALECTS["messages"]
        execution = self._who(request)
        if isinstance(execution, CallError):
            return self._refuse(error_response(dialect, execution))
        try:
            asked = await self._read(request, dialect, execution)
            if isinstance(asked, Response):
                return self._refuse(asked)
            return _json(messages_reply.count(await self._broker.count(execution, asked)))
        except InvalidRequest as error:
            return self._refused(dialect, error)

    async def models(self, request: Request) -> Response:
        dialect = DIALECTS["messages" if "anthropic-version" in request.headers else "chat"]
        execution = self._who(request)
        if isinstance(execution, CallError):
            return self._refuse(error_response(dialect, execution))
        await self._types(dialect)
        if dialect.name == "messages":
            return _json(messages_reply.models(self._model, self._broker.context_tokens))
        return _json(chat_reply.models(self._model))

    async def _read(self, request: Request, dialect: Dialect, execution: LiveExecution) -> ModelRequest | Response:
        """The request, or the response to one that is too large. Raises InvalidRequest."""
        raw = await read_body(request, BODY_LIMIT_BYTES)
        if raw is None:
            error = CallError(413, "body_too_large", f"the body exceeds {BODY_LIMIT_BYTES} bytes")
            return error_response(dialect, error)
        body = wire.loads(raw)
        await self._types(dialect)
        headers = {name.lower(): value for name, value in request.headers.items()}
        return execution.agents.settled(dialect.parse(body, headers, self._role(execution, headers, body)))

    def _role(self, execution: LiveExecution, headers: dict[str, str], body: Any) -> CallRole:
        adapter = self._adapters.get(execution.registration.harness)
        if adapter is None or not isinstance(body, dict):
            return CallRole.MAIN
        try:
            return adapter.role_of(headers, body)
        except (TypeError, ValueError, LookupError, AttributeError):
            # The request is the harness' own and will be refused by name if it is wrong: no reason for a crash.
            log.exception("%s cannot tell the role of a call of %s", adapter.name, execution.name)
            return CallRole.MAIN

    async def _types(self, dialect: Dialect) -> None:
        """The dialect's wire types, imported in a thread: streams go on meanwhile."""
        if dialect.name not in _LOADED:
            await asyncio.to_thread(dialect.load)
            _LOADED.add(dialect.name)
            gc.freeze()  # what a package brings stays: no collection has to look at it again and hold up the streams

    def _who(self, request: Request) -> LiveExecution | CallError:
        headers = request.headers
        token = (
            request.path_params.get("token")
            or headers.get("authorization", "").removeprefix("Bearer ")
            or headers.get("x-api-key", "")
        )
        execution = self._executions.of_token(token) if token else None
        if execution is not None:
            return execution
        if token and self._executions.was_closed(token):
            return CallError(410, "execution_closed", "this execution is closed")
        return CallError(401, "invalid_api_key", "no execution has this token")

    def _refused(self, dialect: Dialect, error: InvalidRequest) -> Response:
        status, body = dialect.refusal(error)
        return self._refuse(_json(body, status))

    def _refuse(self, response: Response) -> Response:
        self._metrics.refused.labels(str(response.status_code)).inc()
        return response


async def _gone(request: Request, error: Exception) -> Response:
    """Nobody is there any more to read this: the client hung up while it was still asking."""
    return Response(status_code=400)


async def _no_route(request: Request, error: Exception) -> Response:
    """What is not served, in the words of whoever asks."""
    dialect = DIALECTS["messages" if "anthropic-version" in request.headers else "chat"]
    status = getattr(error, "status_code", 404)
    return error_response(dialect, CallError(status, "not_found", f"{request.method} {_shown(request)} is not served"))


def _shown(request: Request) -> str:
    """The path without the secret in it."""
    parts = request.url.path.split("/")
    return "/".join([*parts[:2], "...", *parts[3:]] if parts[1:2] == ["x"] else parts)


_LOADED: set[str] = set()


def _json(body: Any, status: int = 200) -> Response:
    return Response(wire.dumps(body), status_code=status, media_type="application/json")

"""The port harnesses talk to: model calls by one secret token per execution, and nothing else.

The token is in the path (`/x/<token>/v1/...`) or the bearer key. An unknown one is 401, one of a closed execution 410.
No admin route is here.
"""

import json
import logging
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from workers.proxy.broker import Broker
from workers.proxy.call import CallError
from workers.proxy.dialect import chat
from workers.proxy.executions import Executions, LiveExecution
from workers.proxy.metrics import Metrics
from workers.proxy.reply import ChatReply, error_response, read_body
from workers.proxy.settings import ProxySettings
from workflows.messages.errors import InvalidRequest

log = logging.getLogger(__name__)
BODY_LIMIT_BYTES = 64 << 20


def public_app(
    broker: Broker, executions: Executions, settings: ProxySettings, metrics: Metrics, model: str
) -> ASGIApp:
    """The ASGI application of the public port."""
    return Starlette(routes=_Public(broker, executions, settings, metrics, model).table())


class _Public:
    def __init__(
        self, broker: Broker, executions: Executions, settings: ProxySettings, metrics: Metrics, model: str
    ) -> None:
        self._broker, self._executions, self._settings = broker, executions, settings
        self._metrics, self._model = metrics, model

    def table(self) -> list[Route]:
        routes: list[Route] = []
        for prefix in ("/x/{token}/v1", "/v1"):
            routes.append(Route(f"{prefix}/chat/completions", self.chat_completions, methods=["POST"]))
            routes.append(Route(f"{prefix}/models", self.models, methods=["GET"]))
        return routes

    async def chat_completions(self, request: Request) -> Any:
        execution = self._who(request)
        if isinstance(execution, CallError):
            return self._refuse(error_response(execution))
        raw = await read_body(request, BODY_LIMIT_BYTES)
        if raw is None:
            text = f"the body exceeds {BODY_LIMIT_BYTES} bytes"
            return self._refuse(error_response(CallError(413, "body_too_large", text)))
        try:
            asked = chat.parse(_json(raw))
            call = await self._broker.open(execution, asked)
        except InvalidRequest as error:
            status, body = chat.refusal(error)
            return self._refuse(JSONResponse(body, status_code=status))
        model = asked.model or self._model
        return ChatReply(call, asked, model, self._settings, lambda: self._broker.delivered(execution, call))

    async def models(self, request: Request) -> Response:
        execution = self._who(request)
        if isinstance(execution, CallError):
            return self._refuse(error_response(execution))
        return JSONResponse(chat.models(self._model))

    def _who(self, request: Request) -> LiveExecution | CallError:
        token = request.path_params.get("token") or request.headers.get("authorization", "").removeprefix("Bearer ")
        execution = self._executions.of_token(token) if token else None
        if execution is not None:
            return execution
        if token and self._executions.was_closed(token):
            return CallError(410, "execution_closed", "this execution is closed")
        return CallError(401, "invalid_api_key", "no execution has this token")

    def _refuse(self, response: Response) -> Response:
        self._metrics.refused.labels(str(response.status_code)).inc()
        return response


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"not JSON: {error}", field="body") from None

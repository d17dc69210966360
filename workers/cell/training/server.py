"""The actor's control server: HTTP on loopback, a bearer key, one compute thread.

Requests that change the actor run one after the other in that thread, in order of arrival (`compute` has what several
pipeline stages make of that); `status`, `expose_snapshot`
and `release_snapshot` run beside it, so a satellite can join, and a supervisor look, while the core computes.
"""

import asyncio
import hmac
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from infra.actor.wire import ROUTES, ErrorBody, body_of, status_of
from workers.cell.training.compute import Answer, ComputeThread
from workflows.messages.base import Message
from workflows.messages.errors import GyreError, InvalidInput
from workflows.messages.training import ActorRequest, RunMicroStep

if TYPE_CHECKING:  # the paced one must not bring torch with it
    from workers.cell.training.actor import TrainingActor
    from workers.cell.training.paced import PacedActor

log = logging.getLogger(__name__)

BESIDE = {"expose_snapshot", "release_snapshot"}
DISCONNECT_POLL_SECONDS = 0.5


class ActorServer:
    """Maps requests to the actor's methods of the same name."""

    def __init__(self, actor: "TrainingActor | PacedActor", key: str) -> None:
        self._actor = actor
        self._authorization = f"Bearer {key}".encode()
        self._compute = ComputeThread(actor)
        self._beside = ThreadPoolExecutor(4, thread_name_prefix="beside")
        self._waiting = 0

    def application(self) -> Starlette:
        routes = [Route(f"/{name}", self._endpoint(name), methods=["POST"]) for name in ROUTES]
        return Starlette(routes=[Route("/status", self._status, methods=["GET"]), *routes])

    def _endpoint(self, name: str) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            if not self._is_authorized(request):
                return _unauthorized()
            try:
                parsed = _parsed(ROUTES[name][0], await request.body())
                reply = await self._run(name, parsed, request)
            except GyreError as error:
                log.info("%s refused: %s: %s", name, type(error).__name__, error)
                return _answer(status_of(error), body_of(error))
            except Exception as error:
                log.exception("%s failed", name)
                text = f"{type(error).__name__}: {error}"[:2000]
                return _answer(503, ErrorBody(error="ActorUnavailable", message=f"{name} failed: {text}"))
            return _answer(200, reply)

        return endpoint

    async def _run(self, name: str, parsed: ActorRequest, request: Request) -> Message:
        self._actor.fence(parsed)
        method = getattr(self._actor, name)
        loop = asyncio.get_running_loop()
        if name in BESIDE:
            return await loop.run_in_executor(self._beside, self._fenced, method, parsed)
        self._waiting += 1
        try:
            if not isinstance(parsed, RunMicroStep):
                return await asyncio.wrap_future(self._compute.alone(partial(self._fenced, method, parsed)))
            gone = threading.Event()
            feed = partial(self._feed, parsed, self._actor.generation, gone.is_set)
            work = asyncio.wrap_future(self._compute.flowing(feed))
            while not (await asyncio.wait({work}, timeout=DISCONNECT_POLL_SECONDS))[0]:
                if await request.is_disconnected():
                    gone.set()
            return work.result()
        finally:
            self._waiting -= 1

    def _fenced(self, method: Callable[..., Message], parsed: ActorRequest, *arguments: Any) -> Message:
        """Fenced again when its turn comes: a newer lease may have arrived while it waited."""
        self._actor.fence(parsed)
        return method(parsed, *arguments)

    def _feed(self, parsed: RunMicroStep, generation: int, abandoned: Callable[[], bool], answer: Answer) -> None:
        self._actor.fence(parsed)
        self._actor.feed(parsed, generation, abandoned, answer)

    async def _status(self, request: Request) -> Response:
        if not self._is_authorized(request):
            return _unauthorized()
        # Not in the event loop: while a large snapshot is being copied, the look at its pins waits.
        return _answer(200, await asyncio.to_thread(self._actor.status, busy=self._waiting > 0))

    def _is_authorized(self, request: Request) -> bool:
        return hmac.compare_digest(request.headers.get("authorization", "").encode(), self._authorization)


def _parsed(model: type[ActorRequest], body: bytes) -> ActorRequest:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidInput(first["msg"], field=".".join(str(part) for part in first["loc"]) or None) from None


def _answer(status: int, message: Message) -> Response:
    return Response(message.model_dump_json(), status_code=status, media_type="application/json")


def _unauthorized() -> Response:
    return JSONResponse({"error": "Unauthorized", "message": "wrong or missing key"}, status_code=401)

"""Asynchronous client of the proxy's control API, without any retry of its own: every route is idempotent.

Raises EngineUnavailable when the proxy does not answer (it may be restarting), Fenced for an older boot epoch or
attempt, InvalidInput for what it does not accept.
"""

from typing import Any, Self
from urllib.parse import quote

import httpx2

from workflows.messages.base import Message
from workflows.messages.errors import EngineUnavailable, Fenced, InvalidInput
from workflows.messages.routing import (
    CancelRequest,
    CancelResult,
    DoorChange,
    EngineEntry,
    HandoffDone,
    RegisterExecution,
    ReroutePlan,
    RerouteRequest,
    RoutingState,
)

CANCEL_SECONDS = 60.0


class RoutingClient:
    """`base_url` is the admin port's (`RunManifest.proxy_admin_url`)."""

    def __init__(
        self,
        base_url: str,
        admin_key: str,
        *,
        timeout_seconds: float = 15.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx2.AsyncClient(
            base_url=base_url,
            headers={"Authorization": f"Bearer {admin_key}"},
            timeout=httpx2.Timeout(timeout_seconds, connect=5.0),
            transport=transport,
            trust_env=False,
            verify=base_url.startswith("https"),  # reading the trust store costs 40 ms; plain http has no use for it
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def put_engine(self, entry: EngineEntry) -> None:
        """Make an engine known, its door closed; the same entry again changes nothing."""
        await self._send("PUT", f"/admin/engines/{quote(entry.engine, safe='')}", entry)

    async def change_door(self, change: DoorChange) -> None:
        await self._send("POST", f"/admin/engines/{quote(change.engine, safe='')}/door", change)

    async def engine_lost(self, engine: str, boot_epoch: int) -> None:
        """Its requests continue elsewhere at once."""
        await self._send("POST", f"/admin/engines/{quote(engine, safe='')}/lost", {"boot_epoch": boot_epoch})

    async def reroute(self, request: RerouteRequest) -> ReroutePlan:
        return ReroutePlan.model_validate(await self._send("POST", "/admin/reroutes", request))

    async def cancel(self, request: CancelRequest) -> CancelResult:
        """Returns when what was outstanding has ended at the engine, or after the proxy's grace; ask again until
        `still_running` is 0."""
        return CancelResult.model_validate(await self._send("POST", "/admin/cancels", request, CANCEL_SECONDS))

    async def handoff_done(self, done: HandoffDone) -> None:
        await self._send("POST", "/admin/handoffs", done)

    async def register_execution(self, registration: RegisterExecution) -> None:
        await self._send("POST", "/admin/executions", registration)

    async def end_execution(self, execution: str) -> None:
        """No further call is accepted; every record of the execution is durable when this returns."""
        await self._send("DELETE", f"/admin/executions/{quote(execution)}", None, CANCEL_SECONDS)

    async def state(self) -> RoutingState:
        return RoutingState.model_validate(await self._send("GET", "/admin/state", None))

    async def healthy(self) -> bool:
        """Whether the proxy answers at all; never raises."""
        try:
            return (await self._http.get("/health")).status_code == 200
        except httpx2.HTTPError:
            return False

    async def _send(
        self, method: str, path: str, body: Message | dict[str, Any] | None, seconds: float | None = None
    ) -> Any:
        content = body.model_dump(mode="json") if isinstance(body, Message) else body
        timeout = httpx2.USE_CLIENT_DEFAULT if seconds is None else httpx2.Timeout(seconds, connect=5.0)
        try:
            response = await self._http.request(method, path, json=content, timeout=timeout)
            answer = response.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise EngineUnavailable(f"the proxy's {path}: {error or type(error).__name__}") from error
        if response.status_code == 200:
            return answer
        message, field = str(answer.get("message", answer)), answer.get("field")
        if response.status_code == 409:
            raise Fenced(message)
        if 400 <= response.status_code < 500:
            raise InvalidInput(message.removeprefix(f"{field}: "), field=field)
        raise EngineUnavailable(f"the proxy's {path} answered {response.status_code}: {message}")

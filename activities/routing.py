"""The proxy's route table, changed for a role change. Every call is idempotent and fenced by boot epoch and lease."""

from typing import Protocol

from temporalio import activity

from workflows.messages.routing import (
    CancelRequest,
    CancelResult,
    DoorChange,
    EngineEntry,
    HandoffDone,
    ReroutePlan,
    RerouteRequest,
)


class Router(Protocol):
    """The proxy's control API as these activities need it; `infra.routing.RoutingClient` is one."""

    async def put_engine(self, entry: EngineEntry) -> None: ...

    async def change_door(self, change: DoorChange) -> None: ...

    async def reroute(self, request: RerouteRequest) -> ReroutePlan: ...

    async def cancel(self, request: CancelRequest) -> CancelResult: ...

    async def handoff_done(self, done: HandoffDone) -> None: ...


class RoutingActivities:
    """Runs on the control queue."""

    def __init__(self, router: Router) -> None:
        self._router = router

    @activity.defn(name="register_engine")
    async def register_engine(self, entry: EngineEntry) -> None:
        """Make a booted engine known, its door closed."""
        await self._router.put_engine(entry)

    @activity.defn(name="change_door")
    async def change_door(self, change: DoorChange) -> None:
        """Open a verified engine's door, or close it."""
        await self._router.change_door(change)

    @activity.defn(name="reroute_executions")
    async def reroute_executions(self, request: RerouteRequest) -> ReroutePlan:
        """Close the door, reserve room elsewhere, switch the routes; running requests go on until cancelled."""
        return await self._router.reroute(request)

    @activity.defn(name="cancel_requests")
    async def cancel_requests(self, request: CancelRequest) -> CancelResult:
        """Cut what is outstanding at the engine; the proxy continues each request at its new home."""
        return await self._router.cancel(request)

    @activity.defn(name="announce_handoff")
    async def announce_handoff(self, done: HandoffDone) -> None:
        """Let requests that wait for their KV go on."""
        await self._router.handoff_done(done)

"""The proxy's control API (its admin port, bearer admin key) and what the routing activities exchange with it.

PUT    /admin/engines/{engine}        EngineEntry            upsert, door closed; an older boot epoch is refused (409)
POST   /admin/engines/{engine}/door   DoorChange             open only at a version and checksum; close is idempotent
POST   /admin/engines/{engine}/lost   {"boot_epoch": n}      the engine died: its requests continue elsewhere at once
POST   /admin/reroutes                RerouteRequest -> ReroutePlan   reserve and switch routes; requests not yet moved
POST   /admin/cancels                 CancelRequest -> CancelResult   cancel what is outstanding; the proxy retries it
POST   /admin/handoffs                HandoffDone            KV has arrived (or will not): waiting retries go on
POST   /admin/executions              RegisterExecution      token hash, sampling, seed; idempotent per attempt
DELETE /admin/executions/{id}                                no further call is accepted (harness gets 410)
GET    /admin/state                   RoutingState
"""

from pydantic import Field

from workflows.messages.base import Message
from workflows.messages.burst import Sampling


class EngineEntry(Message):
    """One rollout engine as the proxy knows it. `slots` = requests it runs at once; `kv_tokens` = its KV capacity."""

    engine: str
    cell: int
    boot_epoch: int
    url: str
    slots: int = Field(ge=1)
    kv_tokens: int = Field(ge=1)
    standalone: bool = False


class DoorChange(Message):
    """Open an engine's door (with the version it has been verified at) or close it.

    Closed with a `version`, the engine is about to be brought to it in place; what runs there goes on.
    """

    engine: str
    boot_epoch: int
    open: bool
    version: int | None = None
    checksum: str | None = Field(default=None, description="required to open; part of the KV key")


class RerouteRequest(Message):
    """Close the door of `engine`, reserve room elsewhere and switch the routes of its executions.

    Preference: standalone engines, then rollout cells in descending index, each within its slots; what finds no room
    waits in the proxy. `lease` makes it idempotent: the same lease returns the same plan.
    """

    engine: str
    boot_epoch: int
    lease: str


class Move(Message):
    """One execution's new home; `destination` empty: it waits in the proxy."""

    execution: str
    destination: str
    in_flight: bool = Field(description="a request is running or queued; else the execution is inside a tool call")


class ReroutePlan(Message):
    lease: str
    moves: tuple[Move, ...]


class CancelRequest(Message):
    """Cancel every request still outstanding at `engine` under `lease` and continue each at its new home.

    With `await_kv_seconds` > 0 a continued request first waits for `HandoffDone` of its execution, that long at most.
    """

    engine: str
    boot_epoch: int
    lease: str
    await_kv_seconds: float = 0.0


class CancelResult(Message):
    """How many requests were cut and continued; `still_running` must reach 0 before writes count as stopped."""

    requests_moved: int
    still_running: int


class HandoffDone(Message):
    """KV of these executions has arrived at `engine` (or will not): requests that wait for it go on."""

    lease: str
    engine: str
    executions: tuple[str, ...]
    arrived: bool


class RegisterExecution(Message):
    """An execution may call the model from now on, by the token whose sha256 this is."""

    execution: str
    run: str
    token_sha256: str
    attempt: int
    seed: int
    sampling: Sampling
    call_limit: int
    harness: str = Field(default="command", description="whose adapter tells the roles of its calls apart")


class EngineState(Message):
    entry: EngineEntry
    door_open: bool
    version: int | None
    checksum: str | None
    running: int
    executions: int


class RoutingState(Message):
    """What the proxy holds now. `waiting`: requests held back because no engine can take them."""

    engines: tuple[EngineState, ...]
    waiting: int
    executions: int

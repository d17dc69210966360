"""Faults that strike before the first token: the request is refused, ignored or answered with nonsense."""

import asyncio

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from workers.cell.rollout.paced.engine import PacedEngine
from workers.cell.rollout.paced.faults import FaultKind
from workers.cell.rollout.paced.generation import Generation

LOOK_SECONDS = 0.05


async def struck_at_once(generation: Generation, request: Request) -> Response | None:
    """The response an armed fault gives instead of an answer; None if there is none."""
    fault = generation.fault
    if fault is None:
        return None
    if fault.kind is FaultKind.REFUSE:
        headers = {"retry-after": fault.retry_after} if fault.retry_after else None
        return JSONResponse({"error": {"message": "refused (fault)"}}, status_code=fault.status, headers=headers)
    if fault.kind is FaultKind.GARBAGE:
        return HTMLResponse("<html><body>It works!</body></html>")
    if fault.kind is FaultKind.STALL:
        while not await request.is_disconnected():
            await asyncio.sleep(LOOK_SECONDS)
        return Response(status_code=499)
    return None


async def finished(engine: PacedEngine, generation: Generation) -> None:
    """Run a request to its end."""
    await engine.submit(generation)
    while generation.finish is None:
        await generation.changed.wait()
        generation.changed.clear()

"""`gyre up`: start a local stack, say what happens to it, stop it on Ctrl-C."""

import asyncio
import signal
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from infra.settings.fleet import Fleet, load_fleet
from infra.weights.folder import require_model
from workers.cli.arguments import Amount
from workers.cli.runs import run_folder
from workers.supervisor import LocalStack, StackEvent
from workers.supervisor.hints import next_steps
from workers.supervisor.run_folder import CHECKOUT, set_aside

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TELL_SECONDS = 10.0
_WAITS_ON = {"control": "control (which starts the Scheduler when cell-0 has its weights)"}
_STYLES = {"died": "red", "killed": "red", "restarting": "yellow", "changed": "yellow", "ready": "green"}


def up(
    *, fleet: Path | None = None, run_dir: Path | None = None, fresh: bool = False, ready_seconds: Amount = 180
) -> None:
    """Start every component of a fleet and watch them until Ctrl-C.

    Parameters
    ----------
    fleet
        Fleet file (TOML); without it the run's own, or the default fleet: a core and two satellites.
    run_dir
        Where the run keeps everything; `var/runs/<run>` without it.
    fresh
        Start a new run; an earlier one is moved aside. Without it the last one goes on.
    ready_seconds
        How long the components may take until they work.
    """
    settings = load_fleet(fleet) if fleet else None
    folder = run_dir or run_folder((settings or Fleet()).run)
    console = Console()
    if settings is not None:
        require_model(CHECKOUT / settings.model)  # before an earlier run is moved out of the way for nothing
    if fresh:
        aside = set_aside(folder)
        if aside:
            console.print(f"the earlier run is now in {aside}")
    stack = LocalStack(settings, folder, on_event=lambda event: say(console, event))
    asyncio.run(serve(stack, console, ready_seconds=ready_seconds))


async def serve(stack: LocalStack, console: Console, *, ready_seconds: float) -> None:
    """Run a stack until a signal asks to stop, at whatever point that comes. Raises Transient when it never works."""
    body = asyncio.create_task(_until_cancelled(stack, console, ready_seconds), name="stack")
    loop = asyncio.get_running_loop()

    def ask_to_stop() -> None:
        console.print("stopping: harnesses first, then cells, proxy and control together, then Temporal")

        def still() -> None:
            living = [name for name, pid in stack.processes().items() if pid is not None]
            console.print(f"still stopping: {', '.join(living) or 'what harnesses have left'}")

        # Once only: a second Ctrl-C must not leave half a stack behind.
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, still)
        body.cancel()

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, ask_to_stop)
    await asyncio.wait({body})
    if not body.cancelled():
        body.result()
    console.print(f"stopped; peak memory {stack.peak_pss_bytes / 2**30:.2f} GiB")


async def _until_cancelled(stack: LocalStack, console: Console, ready_seconds: float) -> None:
    async with stack:
        telling = asyncio.create_task(_tell_what_is_waited_for(stack, console), name="tell what is waited for")
        try:
            await stack.ready(timeout_seconds=ready_seconds)
            serves = await stack.serving(timeout_seconds=ready_seconds)
        finally:
            telling.cancel()
        if not serves and stack.has_cells:
            console.print("[yellow]no engine serves yet: a burst that is started now waits for one[/]")
        _welcome(stack, console)
        await asyncio.Event().wait()


async def _tell_what_is_waited_for(stack: LocalStack, console: Console) -> None:
    while True:
        await asyncio.sleep(_TELL_SECONDS)
        names = [_WAITS_ON.get(name, name) for name in stack.unready()]
        console.print(
            f"[dim]still waiting for {', '.join(names) or 'an engine that serves'}[/]", soft_wrap=True, highlight=False
        )


def _welcome(stack: LocalStack, console: Console) -> None:
    manifest = stack.manifest
    console.rule(f"run {escape(manifest.run)} is up")
    console.print(f"web UI: {manifest.temporal_ui or 'that of your Temporal cluster'}")
    console.print(f"logs:   {manifest.logs}")
    for what, command in next_steps(manifest):
        console.print(f"\n[dim]# {what}[/]\n{escape(command)}", soft_wrap=True, highlight=False)
    console.print("\nCtrl-C stops everything started here.")


def say(console: Console, event: StackEvent) -> None:
    """One line about one event."""
    style = _STYLES.get(event.event, "dim")
    pid = f" (pid {event.pid})" if event.pid and event.event == "started" else ""
    text = escape(f"{event.event}{pid}{f': {event.detail}' if event.detail else ''}")
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    console.print(f"[dim]{at}[/] {event.component:13} [{style}]{text}[/]", soft_wrap=True, highlight=False)

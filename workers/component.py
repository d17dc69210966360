"""What the components of a stack do alike, whatever they serve: the command line, the log, and an end within bounds.

Told to stop (TERM by the supervisor, or by the kernel when that has died), a component has its grace to end by itself.
After that a supervisor kills it; where none is left to do that, the kernel does. So none stays behind because what it
would take leave of, a Temporal server that died with the rest, no longer answers.
"""

import argparse
import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path

GRACE_SECONDS = 10.0
CELL_GRACE_SECONDS = 20.0
"""A cell ends an engine and a trainer."""

_MARGIN_SECONDS = 2.0
"""So that a living supervisor kills first, and says so."""


def command_line(description: str) -> argparse.ArgumentParser:
    """The arguments of every component."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--run-dir", type=Path, required=True)
    return parser


def begin_log() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for every call would bury the rest


def when_told_to_stop(stop: Callable[[], None], *, grace_seconds: float = GRACE_SECONDS) -> None:
    """Have the running loop call `stop` at TERM and INT. From the first on, the process ends within its grace."""

    def told() -> None:
        end_within(grace_seconds)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told)


def end_within(grace_seconds: float) -> None:
    """Have the kernel end this process when its grace is over, unless it was to be over earlier."""
    left, _ = signal.setitimer(signal.ITIMER_REAL, grace_seconds + _MARGIN_SECONDS)
    if left and left < grace_seconds + _MARGIN_SECONDS:
        signal.setitimer(signal.ITIMER_REAL, left)

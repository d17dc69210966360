"""A warm process that forks training actors, so that a test may kill ten of them without paying ten starts.

``python -m tests.workers.cell.training.warm`` reads one JSON line per actor ({arguments, key, log, fsync_seconds}) and
answers its pid. The child runs the actor's own `main`; `fsync_seconds` makes its disk as slow as that. Children die
with this process.
"""

import json
import os
import signal
import sys
import time


def load() -> None:
    """Everything an actor imports."""
    import torch
    import uvicorn  # noqa: F401

    import workers.cell.training.actor
    import workers.cell.training.server  # noqa: F401

    torch.set_num_threads(1)


def actor(order: dict) -> None:
    """The forked child; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["GYRE_ACTOR_KEY"] = order["key"]
        sys.argv = ["workers.cell.training", *order["arguments"]]
        fsync, seconds = os.fsync, order["fsync_seconds"]
        os.fsync = lambda descriptor: (time.sleep(seconds), fsync(descriptor))[1]
        from workers.cell.training.__main__ import main

        main()
        code = 0
    finally:
        os._exit(code)


def serve() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead need no reaping
    load()
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            actor(json.loads(line))
        print(pid, flush=True)


if __name__ == "__main__":
    serve()

"""``python -m workers.cell.training.pipeline.process``: one stage after the first. `children` starts it."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from workers.cell.training.__main__ import die_with_parent
from workers.cell.training.pipeline.children import KEY_VARIABLE
from workers.cell.training.pipeline.pulse import BEAT_SECONDS, BUSY_SECONDS, Progress

if TYPE_CHECKING:
    from workers.cell.training.backend import StageGroups
    from workers.cell.training.pipeline.orders import Frames
    from workers.cell.training.pipeline.stage import Stage


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="workers.cell.training.pipeline.process", description="One pipeline stage.")
    parser.add_argument("--stage", type=int, required=True)
    parser.add_argument("--stages", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True, help="base model folder, for its config")
    parser.add_argument("--control", type=int, required=True, help="port on which the first stage gives orders")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--beat-seconds", type=float, default=BEAT_SECONDS, help="between two signs of life")
    parser.add_argument("--parent", type=int, required=True, help="pid to die with")
    return parser.parse_args()


def main(serve: "Callable[[Stage, Frames, StageGroups], None] | None" = None) -> None:
    """Join the first stage, then obey it; `serve` does something else with the stage instead."""
    options = arguments()
    die_with_parent(options.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal it reaches everybody: the actor ends us
    name = f"stage {options.stage}"
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {name} %(name)s: %(message)s")
    key = os.environ.pop(KEY_VARIABLE, "")
    if not key:
        sys.exit(f"{KEY_VARIABLE} must hold the key of the control connection")

    from multiprocessing.connection import Client

    import torch

    from infra.weights.architecture import Architecture
    from workers.cell.training.backend import is_device_busy, join_stages
    from workers.cell.training.model import build_model
    from workers.cell.training.parts import stages_of
    from workers.cell.training.pipeline.link import Alone, MegatronLink
    from workers.cell.training.pipeline.orders import Frames, Order, Report
    from workers.cell.training.pipeline.stage import Stage, StageServer

    torch.set_num_threads(options.threads)
    connection = Client(("127.0.0.1", options.control), authkey=key.encode())
    connection.send_bytes(str(options.stage).encode())
    store = int(connection.recv_bytes())
    progress = Progress()
    frames = Frames(
        connection,
        Order,
        lost=lambda: os._exit(1),
        beat=lambda: Report(op="beat", is_computing=progress.is_at_work, moved=progress.moved),
        quiet_looks=round(BUSY_SECONDS / options.beat_seconds),  # the first stage has its own who look after it
        beat_seconds=options.beat_seconds,
    )
    # The first stage may wait for weights to be loaded long before a large part is built: that is work, too.
    with progress.computing():
        groups = join_stages(store, options.stage, options.stages) if options.stages > 1 else None
        arch = Architecture.from_folder(options.model)
        part, dtype = stages_of(arch, options.stages)[options.stage], getattr(torch, options.dtype)
        model = build_model(arch, part=part, dtype=dtype)
        link = Alone() if groups is None else MegatronLink(model, groups.forward, groups.backward)
        stage = Stage(model, link, options.stage, options.stages, progress)
        progress.is_device_busy = partial(is_device_busy, stage.device)
    if serve is None:
        StageServer(stage, frames).serve()
    elif groups is not None:
        serve(stage, frames, groups)
    if groups is not None:
        groups.leave()


if __name__ == "__main__":
    main()

"""``python -m workers.cell.training``: the training actor process of one cell. `infra.actor.process` starts it."""

import argparse
import ctypes
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.cell.training.actor import TrainingActor
    from workers.cell.training.paced import PacedActor
    from workers.cell.training.pipeline.children import StageProcesses
    from workers.cell.training.settings import ActorSettings

PR_SET_PDEATHSIG = 1
LAST_REPLY_SECONDS = 1
"""How long a request that runs when this process is told to end may take: what it computes ends with the process."""


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends; end now if that has happened already."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent and os.getppid() != parent:
        sys.exit("the parent is gone")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="workers.cell.training", description="Training actor of one cell.")
    parser.add_argument("--cell", type=int, required=True, help="0 is the core")
    parser.add_argument("--boot-epoch", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True, help="base model folder")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--objects", required=True, help="URL of the run's object store")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--stages", type=int, default=1, help="pipeline stages; every one but the first is a process")
    parser.add_argument("--replicas", type=int, default=1, help="copies of the model, all of its stages")
    parser.add_argument("--combine", choices=("reads", "groups"), default="reads")
    parser.add_argument("--keep-checkpoints", type=int, default=3)
    parser.add_argument("--pace", default="", help="JSON of a PacedTrainer: compute nothing, take that time")
    parser.add_argument("--parent", type=int, default=0, help="pid to die with; 0: do not check")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    die_with_parent(options.parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Heavy imports wait until it is certain that there is somebody to work for.
    import uvicorn

    from infra.actor.wire import KEY_VARIABLE
    from infra.checkpoints.code_version import code_version
    from workers.cell.training.server import ActorServer
    from workers.cell.training.settings import ActorSettings

    key = os.environ.pop(KEY_VARIABLE, "")
    if not key:
        sys.exit(f"{KEY_VARIABLE} must hold the key of the control routes")
    settings = ActorSettings(
        cell=options.cell,
        boot_epoch=options.boot_epoch,
        model=options.model,
        checkpoints=options.checkpoints,
        objects_url=options.objects,
        keep_checkpoints=options.keep_checkpoints,
        combine=options.combine,
        code_version=code_version(),
    )
    server = ActorServer(_actor(settings, options), key)
    uvicorn.run(
        server.application(),
        host="127.0.0.1",
        port=options.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=LAST_REPLY_SECONDS,
    )


def _actor(settings: "ActorSettings", options: argparse.Namespace) -> "TrainingActor | PacedActor":
    """The actor that trains, or its double, which does without torch."""
    if options.pace:
        from infra.settings.fleet import PacedTrainer
        from workers.cell.training.paced import PacedActor

        return PacedActor(settings, PacedTrainer.model_validate_json(options.pace))
    # Before this process loads its own libraries: the other stages load theirs meanwhile.
    stages = _stages(settings.model, options) if options.stages * options.replicas > 1 else None
    import torch

    from workers.cell.training.actor import TrainingActor

    torch.set_num_threads(options.threads)
    if stages is None:
        return TrainingActor(settings)
    from workers.cell.training.pipeline.launch import start_stream

    return TrainingActor(settings, stream=start_stream(*stages))


def _stages(model: Path, options: argparse.Namespace) -> "tuple[StageProcesses, list[StageProcesses]]":
    """The stages that this process leads, and those of the other replicas."""
    from workers.cell.training.pipeline.children import StageProcesses

    own = StageProcesses(model, options.stages, options.threads)
    return own, [StageProcesses(model, options.stages, options.threads, first=0) for _ in range(options.replicas - 1)]


if __name__ == "__main__":
    main()

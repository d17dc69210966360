"""``python -m workers.proxy --run-dir DIR``: the model endpoint of one run."""

import argparse
import logging
import sys
from pathlib import Path

import uvloop

from workers.proxy.server import serve

SWITCH_SECONDS = 0.0005
"""The recorder's thread lets go of the interpreter after this when a request has come; 5 ms would be heard."""


def main() -> None:
    parser = argparse.ArgumentParser(description="The model endpoint harnesses talk to.")
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    sys.setswitchinterval(SWITCH_SECONDS)
    uvloop.run(serve(arguments.run_dir))


if __name__ == "__main__":
    main()

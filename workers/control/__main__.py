"""``python -m workers.control --run-dir DIR``: workflows and light activities of one run.

It also starts the run's long-lived workflows, once the core has recorded the weights the run begins with; on a later
start they are there already and simply go on.
"""

import argparse
import asyncio
import logging
from pathlib import Path

from workers.control.worker import serve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for every call would bury the rest
    asyncio.run(serve(arguments.run_dir))


if __name__ == "__main__":
    main()

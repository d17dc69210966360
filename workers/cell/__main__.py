"""``python -m workers.cell --run-dir DIR --cell N``: one boot of one cell."""

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from workers.cell.worker import CellLost, serve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--cell", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for every call would bury the rest
    try:
        asyncio.run(serve(arguments.run_dir, arguments.cell))
    except CellLost as lost:
        logging.getLogger(__name__).error("%s", lost)
        sys.exit(1)


if __name__ == "__main__":
    main()

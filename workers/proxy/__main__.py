"""``python -m workers.proxy --run-dir DIR``: the model endpoint of one run."""

import argparse
import asyncio
import logging
from pathlib import Path

from workers.proxy.server import serve


def main() -> None:
    parser = argparse.ArgumentParser(description="The model endpoint harnesses talk to.")
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    asyncio.run(serve(arguments.run_dir))


if __name__ == "__main__":
    main()

"""``python -m workers.harness_host --run-dir DIR``: owns workspaces and harness processes of one run."""

import argparse
import asyncio
import logging
from pathlib import Path

from workers.harness_host.host import serve


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs harnesses in workspaces and scores what they leave.")
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    asyncio.run(serve(arguments.run_dir))


if __name__ == "__main__":
    main()

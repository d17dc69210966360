"""``python -m workers.cell --run-dir DIR --cell N``: one boot of one cell."""

import asyncio
import logging
import sys

from workers.cell.worker import CellLost, serve
from workers.component import begin_log, command_line


def main() -> None:
    parser = command_line("One boot of one cell.")
    parser.add_argument("--cell", type=int, required=True)
    arguments = parser.parse_args()
    begin_log()
    try:
        asyncio.run(serve(arguments.run_dir, arguments.cell))
    except CellLost as lost:
        logging.getLogger(__name__).error("%s", lost)
        sys.exit(1)


if __name__ == "__main__":
    main()

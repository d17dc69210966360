"""``python -m workers.control --run-dir DIR``: workflows and light activities of one run.

It also starts the run's long-lived workflows, once the core has recorded the weights the run begins with; on a later
start they are there already and simply go on.
"""

import asyncio

from workers.component import begin_log, command_line
from workers.control.worker import serve


def main() -> None:
    arguments = command_line("Workflows and light activities of one run.").parse_args()
    begin_log()
    asyncio.run(serve(arguments.run_dir))


if __name__ == "__main__":
    main()

"""``python -m workers.harness_host --run-dir DIR``: owns workspaces and harness processes of one run."""

import asyncio

from workers.component import begin_log, command_line
from workers.harness_host.host import serve


def main() -> None:
    arguments = command_line("Runs harnesses in workspaces and scores what they leave.").parse_args()
    begin_log()
    asyncio.run(serve(arguments.run_dir))


if __name__ == "__main__":
    main()

"""``python -m workers.proxy --run-dir DIR``: the model endpoint of one run."""

import sys

import uvloop

from workers.component import begin_log, command_line
from workers.proxy.server import serve

SWITCH_SECONDS = 0.0005
"""The recorder's thread lets go of the interpreter after this when a request has come; 5 ms would be heard."""


def main() -> None:
    arguments = command_line("The model endpoint harnesses talk to.").parse_args()
    begin_log()
    sys.setswitchinterval(SWITCH_SECONDS)
    uvloop.run(serve(arguments.run_dir))


if __name__ == "__main__":
    main()

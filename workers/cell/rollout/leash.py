"""Replaces itself by a command that dies with the process that started it. Run as a file: only the standard library.

Arguments: the pid of that process, then the command. The kernel sends the signal when the *thread* that started the
child ends, so start engines from the main thread (an asyncio loop does), never from a short-lived one.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise SystemExit(f"prctl failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        raise SystemExit("the starting process is gone already")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

"""The one way out of a confined command's network: a loopback port that leads to the proxy.

Run as a script inside the sandbox, this opens the port there, hands the listening socket to the runner outside, and
becomes the command. A socket belongs to the network it was made in, so the runner can accept on it from outside.
Standard library alone; started with ``python -I -S``, so it knows no package of ours.

    door.py CHANNEL PORT COMMAND [ARGUMENT ...]
"""

import os
import signal
import socket
import sys

OPEN, FAILED = b"+", b"-"
"""First byte of the one message on the channel; after FAILED comes the reason."""


def main(channel_number: int, port: int, command: list[str]) -> None:
    """Open the door on loopback `port` (0: no door), then exec `command`. Never returns."""
    channel = socket.socket(fileno=channel_number)
    if not any(os.access(os.path.join(folder, command[0]), os.X_OK) for folder in os.get_exec_path()):
        channel.send(FAILED + f"{command[0]}: no such command".encode(errors="replace"))
        sys.exit(127)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            if port:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", port))
                listener.listen(128)
            socket.send_fds(channel, [OPEN], [listener.fileno()] if port else [])
    except OSError as error:
        channel.send(FAILED + f"no door on port {port}: {error}".encode())
        sys.exit(127)
    channel.close()
    # The sandbox ignores TERM, so that the command has its grace; the command itself must not.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

"""Carries connections from a door to what lies behind it, both ways, for the life of a runner.

A listener made inside a sandbox is accepted on from outside, so the command reaches this one address and nothing
else. While nobody listens behind the door (a proxy that restarts), a connection waits a bounded time.
"""

import contextlib
import socket
import threading
import time

MOST_CONNECTIONS = 64
"""At once; further ones wait in the listener's queue."""
_WAIT_SECONDS = 60.0
_CHUNK = 1 << 16


class Relay:
    """Starts threads of its own, all daemons: they end with the runner."""

    def __init__(self, listener: socket.socket, host: str, port: int) -> None:
        self._listener, self._behind = listener, (host, port)
        self._room = threading.Semaphore(MOST_CONNECTIONS)

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._room.acquire()
            try:
                inside, _ = self._listener.accept()
            except OSError:
                return  # the sandbox is gone
            threading.Thread(target=self._carry, args=(inside,), daemon=True).start()

    def _carry(self, inside: socket.socket) -> None:
        try:
            with inside, self._reach() as outside:
                for end in (inside, outside):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                answers = threading.Thread(target=_copy, args=(outside, inside), daemon=True)
                answers.start()
                _copy(inside, outside)
                answers.join()
        except OSError:
            return  # a connection that broke; both ends are closed
        finally:
            self._room.release()

    def _reach(self) -> socket.socket:
        """A connection to what is behind the door. Raises OSError when there is none in time."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                return socket.create_connection(self._behind, timeout=10)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Until `source` says no more; then `target` is told so. A broken end ends both directions."""
    source.settimeout(None)
    try:
        while data := source.recv(_CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

"""Free TCP ports for the servers of a run.

Ports are chosen below the range the kernel hands out for outgoing connections: one picked from that range could be
taken by any connection while its server restarts, and a run keeps its ports for life.
"""

import random
import socket
from collections.abc import Collection

from workflows.messages.errors import Transient

FIRST, LAST = 21000, 31999
"""Where ports are looked for; Linux gives outgoing connections 32768 and up."""


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on `port` now. A connection in TIME_WAIT does not count as taken."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_ports(count: int, *, host: str = "127.0.0.1", avoid: Collection[int] = ()) -> list[int]:
    """`count` different ports free at the moment of the call. Raises Transient when there are not as many."""
    start = random.randrange(FIRST, LAST + 1)
    span = LAST - FIRST + 1
    found: list[int] = []
    for offset in range(span):
        if len(found) == count:
            return found
        port = FIRST + (start - FIRST + offset) % span
        if port not in avoid and is_free(port, host):
            found.append(port)
    if len(found) == count:
        return found
    raise Transient(f"only {len(found)} of {count} ports between {FIRST} and {LAST} are free on {host}")


def keep_or_replace(wanted: list[int], *, host: str = "127.0.0.1") -> list[int]:
    """The same ports where they are free, new ones where not; the order is kept, no port appears twice."""
    kept = {port for port in wanted if port and is_free(port, host)}
    new = iter(free_ports(len(wanted), host=host, avoid={*kept, *wanted}))
    seen: set[int] = set()
    result: list[int] = []
    for port in wanted:
        result.append(port if port in kept and port not in seen else next(new))
        seen.add(port)
    return result

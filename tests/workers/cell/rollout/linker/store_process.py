"""A store with its control port as a process of its own. Arguments: control port, pages, page bytes, session, length.

Holds one session's chain of that length. Prints ``ready``; ends with its stdin.
"""

import sys

from infra.transfer import TransferEndpoint
from tests.workers.cell.rollout.linker.stores import chain, insert, make_store
from workers.cell.rollout.linker.control import ControlServer


def main() -> None:
    port, count, size, length = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5])
    store = make_store(TransferEndpoint(), pages=count, page_bytes=size)
    if length:
        insert(store, sys.argv[4], chain(sys.argv[4], length), size)
    ControlServer(store, port, "secret").start()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

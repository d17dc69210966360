"""What a command may see and reach, by bubblewrap: a read-only machine, a few folders of its own, one network port.

Inside, only processes of the sandbox exist; all of them end with its first one. Everything can be read except what is
hidden; only `writable` can be written. The network is empty but for one loopback port that leads to the proxy
(`infra.processes.door`, `infra.processes.relay`). Standard library alone: the runner needs it.
"""

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.processes.door import FAILED, OPEN

_DOOR = Path(__file__).with_name("door.py")
_OPENING_SECONDS = 30.0
# A workspace may hold files of other users; elsewhere nothing can be written anyway.
_ROOT_KEEPS = ("CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER")


@dataclass(frozen=True)
class Sandbox:
    """One command's sandbox. All paths absolute; a `hidden` folder that is not there is left out.

    `temporary` is what /tmp is inside; `visible` folders of the real /tmp are shown there, read-only; so are `readable`
    ones that lie in a hidden folder.
    With `network` the machine's own network is shared and `door_port` unused; else loopback `door_port` leads to
    `behind_host`:`behind_port`, or nowhere if it is 0.
    """

    bubblewrap: str
    writable: tuple[str, ...]
    temporary: str
    hidden: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    user_namespace: bool = False
    network: bool = False
    door_port: int = 0
    behind_host: str = ""
    behind_port: int = 0

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Sandbox":
        """As read back from JSON."""
        values: dict[str, Any] = {}
        for name, value in fields.items():
            values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)

    def command(self, argv: tuple[str, ...], cwd: str, channel: int) -> tuple[str, ...]:
        """The command line that runs `argv` inside. `channel`: descriptor of the runner's socket, inherited."""
        port = 0 if self.network else self.door_port
        door = (sys.executable, "-I", "-S", str(_DOOR), str(channel), str(port))
        return (*self._walls(), "--chdir", cwd, "--", *door, *argv)

    def _walls(self) -> list[str]:
        # Run by root, bubblewrap leaves every power of root in place unless it is told otherwise.
        walls = [self.bubblewrap, "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL"]
        if self.user_namespace:
            walls.append("--unshare-user")
        elif os.geteuid() == 0:
            for power in _ROOT_KEEPS:
                walls += ["--cap-add", power]
        if not self.network:
            walls.append("--unshare-net")
        walls += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", self.temporary, "/tmp"]
        for path in self.visible:
            walls += ["--ro-bind", path, path]
        for path in self.hidden:
            if Path(path).is_dir():
                walls += ["--tmpfs", path]
            elif Path(path).exists():
                walls += ["--ro-bind", "/dev/null", path]
        for path in self.readable:
            walls += ["--ro-bind", path, path]
        for path in self.writable:
            walls += ["--bind", path, path]
        return walls


def receive_door(channel: socket.socket) -> socket.socket | str | None:
    """The listener that was opened inside, None if there is no door, or why the command could not be started."""
    channel.settimeout(_OPENING_SECONDS)
    try:
        message, descriptors, _, _ = socket.recv_fds(channel, 2000, 1)
    except TimeoutError:
        return "the sandbox did not come up in time"
    if message[:1] == OPEN:
        return socket.socket(fileno=descriptors[0]) if descriptors else None
    if message[:1] == FAILED:
        return message[1:].decode(errors="replace")
    return "the sandbox could not be made"

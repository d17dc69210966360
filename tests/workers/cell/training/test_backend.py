"""Where the stages of a cell can be reached: on this host's loopback and nowhere else."""

import os
import socket
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed import HashStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from workers.cell.training.backend import host_store, on_loopback

LISTENS = "0A"


def listening() -> set[str]:
    """``address:port`` in the kernel's hexadecimal of every socket that this process listens on."""
    held = {os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == LISTENS and f"socket:[{row[9]}]" in held}


def address_of(port: int) -> str:
    packed = int.from_bytes(socket.inet_aton("127.0.0.1"), "little")
    return f"{packed:08X}:{port:04X}"


def test_the_meeting_point_listens_on_loopback_alone() -> None:
    before = listening()
    store = host_store(2, 120)
    assert listening() - before == {address_of(store.port)}
    store.set("from", "one")
    assert TCPStore("127.0.0.1", store.port, 2, is_master=False, timeout=timedelta(seconds=120)).get("from") == b"one"


@pytest.mark.parametrize("kept", [None, "no-such-interface"])
def test_groups_of_stages_listen_on_loopback_alone(kept: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever interface groups over several hosts are told to use."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if kept is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", kept)
        with pytest.raises(RuntimeError):
            dist.ProcessGroupGloo(HashStore(), 0, 1, timedelta(seconds=5))
    before = listening()
    with on_loopback():
        group = dist.ProcessGroupGloo(HashStore(), 0, 1, timedelta(seconds=120))
    found = listening() - before
    assert group.size() == 1
    assert found
    assert all(one.startswith(address_of(0)[:9]) for one in found)
    assert os.environ.get("GLOO_SOCKET_IFNAME") == kept

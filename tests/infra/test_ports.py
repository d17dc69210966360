import socket

import pytest

from infra.ports import FIRST, LAST, free_ports, is_free, keep_or_replace


@pytest.fixture
def listener():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_ports_are_different_free_and_outside_the_range_of_outgoing_connections():
    ports = free_ports(30)
    assert len(set(ports)) == 30
    assert all(FIRST <= port <= LAST and is_free(port) for port in ports)


def test_a_listening_port_is_not_free(listener):
    assert not is_free(listener)


def test_free_ports_are_kept_taken_and_unset_ones_replaced(listener):
    first, second = free_ports(2)
    kept = keep_or_replace([first, listener, 0, second, first])
    assert (kept[0], kept[3]) == (first, second)
    assert listener not in kept
    assert 0 not in kept
    assert len(set(kept)) == 5

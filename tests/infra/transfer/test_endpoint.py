"""Two real processes over loopback."""

import itertools

import numpy as np
import pytest
import torch

from infra.transfer import TransferEndpoint, checksum, manifest_of, pieces
from workflows.messages.errors import InvalidInput, TransferFailed
from workflows.messages.transfer import BufferManifest


def room_for(manifest: BufferManifest) -> dict[str, np.ndarray]:
    return {entry.name: np.zeros(entry.bytes, dtype=np.uint8) for entry in manifest.entries}


def test_reads_and_verifies_more_entries_than_one_call_may_carry(source, endpoint):
    peer = source(1500, 4096)
    into = room_for(peer.manifest)
    endpoint.read(peer.manifest, into)
    expected = np.random.default_rng(7).integers(0, 256, 1500 * 4096, dtype=np.uint8)
    assert np.array_equal(np.concatenate(list(into.values())), expected)
    assert endpoint._regions == {}, "what was registered for the call is unregistered after it"


def test_whoever_watches_sees_every_byte_in_order(source, endpoint, monkeypatch):
    monkeypatch.setattr("infra.transfer.endpoint.PIECE_BYTES", 1 << 12)
    monkeypatch.setattr("infra.transfer.endpoint.WINDOW_BYTES", 1 << 13)
    peer, seen = source(3, 10_001), {}
    into = room_for(peer.manifest)
    endpoint.read(peer.manifest, into, watch=lambda name, data: seen.setdefault(name, bytearray()).extend(data))
    assert {name: bytes(data) for name, data in seen.items()} == {name: a.tobytes() for name, a in into.items()}
    assert list(seen) == list(into)


def test_pieces_cover_entries_without_a_gap():
    memory = np.zeros(100, dtype=np.uint8)
    manifest = manifest_of("127.0.0.1:1", {"a": memory[:60], "b": memory[60:100]}, version=0, boot_epoch=0)
    found = list(pieces.cut(manifest.entries, {"a": memory[:60], "b": memory[60:100]}, size=25))
    assert [(piece.entry.name, piece.bytes, piece.is_last) for piece in found] == [
        ("a", 25, False),
        ("a", 25, False),
        ("a", 10, True),
        ("b", 25, False),
        ("b", 15, True),
    ]
    assert all(before.local + before.bytes == after.local for before, after in itertools.pairwise(found))


def test_a_read_into_registered_memory_keeps_the_registration(source, endpoint):
    peer = source(2, 4096)
    memory = np.zeros(8192, dtype=np.uint8)
    with endpoint.register(memory) as region:
        endpoint.read(peer.manifest, {"b0": memory[:4096], "b1": memory[4096:]})
        assert not region.poisoned
        assert list(endpoint._regions.values()) == [region]
    assert [checksum(memory[:4096]), checksum(memory[4096:])] == [e.xxh3 for e in peer.manifest.entries]


def test_a_dead_peer_fails_and_leaves_the_memory_usable(source, endpoint):
    peer, healthy = source(3, 4096), source(3, 4096)
    into = room_for(peer.manifest)
    endpoint.read(peer.manifest, into)
    peer.kill()
    with pytest.raises(TransferFailed):
        endpoint.read(peer.manifest, into)
    endpoint.read(healthy.manifest, into)
    assert endpoint.quarantined_bytes == 0


def test_a_session_nobody_listens_on_fails(source, endpoint):
    manifest = source(1, 64).manifest.model_copy(update={"session": "127.0.0.1:9"})
    with pytest.raises(TransferFailed, match="no answer"):
        endpoint.read(manifest, room_for(manifest))


def test_a_source_changed_after_its_manifest_fails_the_checksum(source, endpoint):
    peer = source(4, 4096)
    peer.command("scribble")
    with pytest.raises(TransferFailed, match=r"b0 .*checksum"):
        endpoint.read(peer.manifest, room_for(peer.manifest))


def test_memory_of_a_timed_out_read_is_never_used_again(source):
    endpoint, peer = TransferEndpoint(), source(1, 1 << 20)
    into = room_for(peer.manifest)
    endpoint.read(peer.manifest, into)
    peer.stop()
    with pytest.raises(TransferFailed, match="timed out"):
        endpoint.read(peer.manifest, into, timeout_seconds=0.3)
    assert endpoint.quarantined_bytes == 1 << 20
    with pytest.raises(InvalidInput, match="timed-out read"):
        endpoint.read(peer.manifest, into)
    with pytest.raises(InvalidInput, match="overlaps"):
        endpoint.register(into["b0"])
    endpoint.quarantine_limit_bytes = 0
    with pytest.raises(TransferFailed, match="restart this process"):
        endpoint.register(np.zeros(8, dtype=np.uint8))


def test_a_peer_that_hangs_at_first_contact_costs_no_memory_and_blocks_nobody_else(source):
    endpoint, hanging, healthy = TransferEndpoint(), source(1, 4096), source(1, 4096)
    hanging.stop()
    with pytest.raises(TransferFailed, match="in time"):
        endpoint.read(hanging.manifest, room_for(hanging.manifest), timeout_seconds=0.3)
    endpoint.read(healthy.manifest, room_for(healthy.manifest))
    assert endpoint.quarantined_bytes == 0


def test_a_destination_of_another_shape_is_refused_before_anything_is_read(source, endpoint):
    manifest = source(2, 64).manifest
    with pytest.raises(InvalidInput, match="names differ"):
        endpoint.read(manifest, {"b0": np.zeros(64, dtype=np.uint8)})
    with pytest.raises(InvalidInput, match="b1"):
        endpoint.read(manifest, {"b0": np.zeros(64, dtype=np.uint8), "b1": np.zeros(16, dtype=np.float32)})


def test_overlapping_and_shared_registrations(endpoint):
    memory = np.zeros(1024, dtype=np.uint8)
    first, again = endpoint.register(memory), endpoint.register(memory)
    assert first is again, "tied weights register the same memory twice"
    with pytest.raises(InvalidInput, match="overlaps"):
        endpoint.register(memory[10:])
    first.close()
    assert endpoint._regions
    again.close()
    again.close()
    assert not endpoint._regions
    with pytest.raises(InvalidInput, match="contiguous"):
        endpoint.register(np.zeros((8, 8))[:, :2])


def test_torch_tensors_of_any_dtype_are_described(endpoint):
    tensors = {"w": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), "empty": torch.zeros(0)}
    manifest = manifest_of("127.0.0.1:1", tensors, version=1, boot_epoch=1)
    assert [(e.dtype, e.shape, e.bytes) for e in manifest.entries] == [("bfloat16", (2, 3), 12), ("float32", (0,), 0)]
    assert manifest.total_bytes == 12


def test_an_unknown_protocol_is_refused():
    with pytest.raises(InvalidInput, match=r"transfer\.protocol"):
        TransferEndpoint(protocol="carrier-pigeon")

import pytest
import torch

from infra.transfer import PublishedBuffers, TransferEndpoint, checksum
from workflows.messages.errors import StillHeld, VersionMismatch


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def published(endpoint: TransferEndpoint, clock: Clock):
    buffers = PublishedBuffers(endpoint, boot_epoch=5, pin_seconds=10, clock=clock)
    yield buffers
    buffers.close()


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((4, 4), value), "b": torch.full((3,), value, dtype=torch.bfloat16)}


def test_a_pinned_version_is_not_overwritten(published):
    with pytest.raises(StillHeld):
        published.pin()
    published.publish(1, weights(1.0))
    pin = published.pin()
    published.publish(2, weights(2.0))
    assert published.version == 2
    with pytest.raises(StillHeld):
        published.publish(3, weights(3.0), timeout_seconds=0)
    assert published.version == 2, "the version served stays served"
    assert published.release(pin.id)
    published.publish(3, weights(3.0), timeout_seconds=0)
    assert published.pin().manifest.version == 3


def test_a_pin_ends_exactly_once_and_expires(published, clock):
    published.publish(1, weights(1.0))
    pin, forgotten = published.pin(), published.pin()
    assert published.pins() == 2
    assert published.release(pin.id)
    assert not published.release(pin.id)
    clock.now = 11
    assert published.pins() == 0
    assert not published.release(forgotten.id)


def test_the_manifest_is_of_the_copy_not_of_the_caller_tensor(published):
    tensors = weights(1.0)
    manifest = published.publish(1, tensors)
    tensors["w"].zero_()
    again = {entry.name: entry for entry in published.pin().manifest.entries}
    assert again["w"].xxh3 == checksum(torch.full((4, 4), 1.0))
    assert manifest.boot_epoch == 5
    assert again["w"].address != tensors["w"].data_ptr()


def test_versions_never_go_backwards_and_shapes_stay(published):
    published.publish(4, weights(1.0))
    with pytest.raises(VersionMismatch, match="version 3"):
        published.publish(3, weights(1.0))
    published.publish(5, weights(1.0))
    with pytest.raises(VersionMismatch, match="shape"):
        published.publish(6, {"w": torch.zeros(2), "b": torch.zeros(3, dtype=torch.bfloat16)})
    with pytest.raises(VersionMismatch, match="names"):
        published.publish(6, {"w": torch.zeros(4, 4)})

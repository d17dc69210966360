"""The gradient sum of a batch: one flat buffer that autograd adds into and that a peer reads in one piece.

Every parameter's `.grad` is a view of the buffer, so accumulating costs nothing extra and no copy is made to expose it.
"""

import torch
from torch import Tensor

from infra.transfer import RegisteredBuffer, TransferEndpoint, manifest_of
from infra.weights.layout import FlatLayout
from workers.cell.training.whole import WholePolicy
from workflows.messages.transfer import BufferManifest

BUFFER_NAME = "gradients"


class GradientBuffer:
    """Allocated while a cell trains. `flat` is [elements] in the parameters' dtype (fp32; fp64 in tests), in the layout
    of the whole model's Megatron names."""

    def __init__(self, model: WholePolicy, endpoint: TransferEndpoint) -> None:
        self._parameters = dict(model.named_parameters())
        self.layout = FlatLayout.of({name: tuple(p.shape) for name, p in self._parameters.items()})
        like = next(iter(self._parameters.values()))
        self.flat = torch.zeros(self.layout.elements, dtype=like.dtype, device=like.device)
        self.views = self.layout.views(self.flat)
        self._region: RegisteredBuffer = endpoint.register(self.flat)
        self._endpoint = endpoint
        self.attach()

    @property
    def bytes(self) -> int:
        return self.flat.nbytes

    def attach(self) -> None:
        """Make backward passes add into the buffer."""
        for name, parameter in self._parameters.items():
            parameter.grad = self.views[name]

    def is_attached(self) -> bool:
        """False if something replaced a `.grad`: the sum would then miss what was added there."""
        return all(
            parameter.grad is not None and parameter.grad.data_ptr() == self.views[name].data_ptr()
            for name, parameter in self._parameters.items()
        )

    def zero(self) -> None:
        self.flat.zero_()

    def complete(self) -> None:
        """The stream is drained: make `flat` the sum. With one stage it is."""

    def manifest(self, version: int, boot_epoch: int) -> BufferManifest:
        """Describe the sum as it is now; it must not change until the core has read it."""
        return manifest_of(self._endpoint.session, {BUFFER_NAME: self.flat}, version=version, boot_epoch=boot_epoch)

    def close(self) -> None:
        """Unregister and free."""
        for parameter in self._parameters.values():
            parameter.grad = None
        self._region.close()
        self.views = {}
        self.flat = torch.empty(0)


def read_gradients(
    endpoint: TransferEndpoint,
    manifest: BufferManifest,
    layout: FlatLayout,
    timeout_seconds: float,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """A peer's sealed sum [elements], verified. Raises TransferFailed, or InvalidInput for another model's."""
    into = torch.empty(layout.elements, dtype=dtype)
    endpoint.read(manifest, {BUFFER_NAME: into}, timeout_seconds=timeout_seconds)
    return into

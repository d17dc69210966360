"""One-sided reads between processes, over the Mooncake transfer engine.

`TransferEndpoint` registers memory and reads from peers, `PublishedBuffers` keeps versions readable while they are
read, `manifest_of` describes buffers to a peer. Importing this package loads neither torch nor mooncake.

The engine listens on all addresses of the host without authentication: private networks only.
"""

from infra.transfer.buffers import Buffer, checksum, manifest_of
from infra.transfer.endpoint import RegisteredBuffer, TransferEndpoint
from infra.transfer.published import Pin, PublishedBuffers

__all__ = ["Buffer", "Pin", "PublishedBuffers", "RegisteredBuffer", "TransferEndpoint", "checksum", "manifest_of"]

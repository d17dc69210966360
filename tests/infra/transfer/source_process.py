"""A second process that serves registered memory; driven by lines on stdin, answers JSON lines.

Arguments: number of buffers, bytes of each. Commands: ``scribble`` changes a byte after the manifest was made.
"""

import json
import sys

import numpy as np

from infra.transfer import TransferEndpoint, manifest_of


def main() -> None:
    count, size = int(sys.argv[1]), int(sys.argv[2])
    endpoint = TransferEndpoint()
    memory = np.random.default_rng(7).integers(0, 256, count * size, dtype=np.uint8)
    region = endpoint.register(memory)
    buffers = {f"b{i}": memory[i * size : (i + 1) * size] for i in range(count)}
    print(manifest_of(endpoint.session, buffers, version=3, boot_epoch=11).model_dump_json(), flush=True)
    for line in sys.stdin:
        if line.strip() == "scribble":
            memory[size // 2] ^= 0xFF
            print(json.dumps({"done": True}), flush=True)
    region.close()


if __name__ == "__main__":
    main()

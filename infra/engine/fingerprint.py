"""The checksums an engine must report for given weights, so that a publish is verified end to end.

SGLang on CPU hashes every parameter of its own model (the first 8 bytes of sha256 over the bytes) and the sorted
(name, hash) pairs. Its model differs from Hugging Face's names in three ways for dense Qwen and Llama architectures:
q, k and v are stacked along dim 0 into ``qkv_proj``, gate and up into ``gate_up_proj``; tied output embeddings do not
exist; embeddings are padded with zero rows to a multiple of 64. On CUDA it hashes with a GPU kernel of its own, so
there compare two engines with each other, not with this.
"""

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from infra.engine.client import EngineChecksum
from workflows.messages.errors import VersionMismatch

if TYPE_CHECKING:
    import torch

VOCABULARY_PADDING = 64
MOST_THREADS = 8
_PADDED = ("embed_tokens.weight", "lm_head.weight")
_STACKED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def engine_checksums(weights: "Mapping[str, torch.Tensor]", *, tied_embeddings: bool) -> EngineChecksum:
    """From Hugging Face-named CPU tensors in the dtype the engine serves (fp32 on CPU)."""
    named = sorted(_as_engine(weights, tied_embeddings).items())
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:  # sha256 runs without the interpreter
        hashes = pool.map(_hash, [parts for _, parts in named])
        tensors = {name: value for (name, _), value in zip(named, hashes, strict=True)}
    total = hashlib.sha256("".join(name + value for name, value in tensors.items()).encode()).hexdigest()
    return EngineChecksum(tensors=tensors, total=total)


def verify_weights(reported: EngineChecksum, expected: EngineChecksum) -> None:
    """Raises VersionMismatch that names the first parameters which differ."""
    if reported.total == expected.total:
        return
    names = sorted(set(reported.tensors) | set(expected.tensors))
    wrong = [name for name in names if reported.tensors.get(name) != expected.tensors.get(name)]
    raise VersionMismatch(f"the engine holds other weights in {len(wrong)} parameters: {', '.join(wrong[:3])}")


def _as_engine(weights: "Mapping[str, torch.Tensor]", tied: bool) -> "dict[str, list[torch.Tensor]]":
    """Engine parameter name to the parts that are stacked along dim 0."""
    found: dict[str, list[torch.Tensor]] = {}
    for name, tensor in weights.items():
        if tied and name == "lm_head.weight":
            continue
        for stacked, parts in _STACKED.items():
            part = next((part for part in parts if f".{part}." in name), None)
            if part is None:
                continue
            if part == parts[0]:
                found[name.replace(part, stacked)] = [weights[name.replace(part, other)] for other in parts]
            break
        else:
            found[name] = [tensor, *_padding(tensor)] if name.endswith(_PADDED) else [tensor]
    return found


def _padding(embedding: "torch.Tensor") -> "list[torch.Tensor]":
    """The zero rows SGLang adds to [rows, hidden] embeddings, if any."""
    missing = -embedding.shape[0] % VOCABULARY_PADDING
    return [embedding.new_zeros(missing, embedding.shape[1])] if missing else []


def _hash(parts: "list[torch.Tensor]") -> str:
    import torch

    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()[:8].hex()

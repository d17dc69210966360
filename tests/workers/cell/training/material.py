"""A tiny random policy and micro-steps made from plain numbers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from infra.micro_steps import MicroStepHeader, PackedMicroStep, PackedPath, TargetSpan, encode
from infra.objects import ObjectStore
from infra.weights.architecture import Architecture
from infra.weights.folder import save_weights
from infra.weights.names import hf_shapes
from workflows.messages.group import MicroStep

VOCAB = 97


def write_policy(folder: Path, *, tied: bool = True, seed: int = 0, layers: int = 2) -> Path:
    """A model folder with random weights; head_dim is not hidden / heads, as in the real architecture."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "max_position_embeddings": 2048,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "attention_bias": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in hf_shapes(Architecture.from_folder(folder)).items():
        noise = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.1 * noise if len(shape) == 1 else 0.15 * noise
    save_weights(folder, tensors, folder.parent)
    return folder


@dataclass(frozen=True)
class Sampled:
    """One execution with one path: `prompt` context tokens, then `output` targets."""

    name: str
    advantage: float
    ids: tuple[int, ...]
    prompt: int
    behaviour: tuple[float, ...]


def sampled(name: str, advantage: float, prompt: int, output: int, seed: int = 0) -> Sampled:
    """Random ids and behaviour log-probs around those of a random policy."""
    random = np.random.default_rng([seed, len(name), prompt, output])
    ids = tuple(int(i) for i in random.integers(0, VOCAB, prompt + output))
    return Sampled(name, advantage, ids, prompt, tuple(-4.5 + 0.4 * random.standard_normal(output)))


def pack(
    executions: Sequence[Sampled], *, batch: str = "b", index: int = 0, temperature: float = 1.0, version: int = 0
) -> PackedMicroStep:
    """The executions' paths packed into one micro-step."""
    ids, positions, targets, weights, behaviour, versions, edges, paths = [], [], [], [], [], [], [0], []
    for execution in executions:
        start, total = len(ids), len(execution.ids)
        outputs = total - execution.prompt
        is_target = [place >= execution.prompt for place in range(total)]
        ids += execution.ids
        positions += range(total)
        targets += is_target
        weight = execution.advantage / max(outputs, 1)
        weights += [weight if target else 0.0 for target in is_target]
        behaviour += [0.0] * execution.prompt + list(execution.behaviour)
        versions += [version if target else -1 for target in is_target]
        edges.append(len(ids))
        first = start + execution.prompt
        span = TargetSpan(call=f"{execution.name}/0", offset=0, start=first, end=first + max(outputs, 1))
        paths.append(
            PackedPath(
                execution=execution.name,
                leaf=f"{execution.name}/0",
                segment=len(paths),
                advantage=execution.advantage,
                target_total=outputs,
                spans=(span,) if outputs else (),
            )
        )
    return PackedMicroStep(
        header=MicroStepHeader(batch=batch, index=index, group="g", temperature=temperature, paths=tuple(paths)),
        ids=np.array(ids, np.int32),
        positions=np.array(positions, np.int32),
        segment_offsets=np.array(edges, np.int32),
        segment_parents=np.full(len(paths), -1, np.int32),
        targets=np.array(targets, bool),
        weights=np.array(weights, np.float32),
        behaviour_logprobs=np.array(behaviour, np.float32),
        versions=np.array(versions, np.int64),
    )


def put(objects: ObjectStore, step: PackedMicroStep) -> MicroStep:
    """Store a micro-step as the packer does."""
    header = step.header
    payload = objects.put(f"micro-steps/{header.batch}/{header.index}.safetensors", encode(step))
    return MicroStep(
        batch=header.batch,
        index=header.index,
        group=header.group,
        payload=payload,
        tokens=step.tokens,
        target_tokens=step.target_tokens,
    )

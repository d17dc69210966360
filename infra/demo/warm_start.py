"""Make the demo's policy: generate demonstrations, train the tokenizer and the model on them, measure the pass rate.

    python -m infra.demo.warm_start --out infra/demo/policy

Plain torch, on purpose not the product's trainer: this is where the product starts from. The budget is in steps, not
seconds, so that a slow machine gets the same policy. `recipe.json` beside the weights records every number.
"""

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from infra.demo.bpe import save_tokenizer, train_tokenizer
from infra.demo.demonstrations import demonstrations
from infra.demo.rollouts import Rollout, mean_reward, roll_out
from infra.demo.tasks import repair_of
from infra.tokenizer import ChatTokenizer

CONTEXT = 4096


@dataclass(frozen=True)
class Recipe:
    """Everything the result depends on."""

    seed: int = 0
    demonstrations: int = 10000
    tokenizer_demonstrations: int = 4000
    vocabulary: int = 2048
    hidden: int = 256
    feed_forward: int = 768
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    head_size: int = 32
    batch: int = 16
    steps: int = 750
    warm_up_steps: int = 50
    learning_rate: float = 2e-3
    final_fraction: float = 0.1
    weight_decay: float = 0.01
    context_weight: float = 0.1  # weight of tokens that the policy does not write
    measured_tasks: int = 200


Sample = tuple[list[int], list[float]]


def encode(chat: ChatTokenizer, conversation: list[dict[str, str]], context_weight: float) -> Sample:
    """Ids of a demonstration and the loss weight of each (1 for what the policy should write, its end token too)."""
    ids: list[int] = []
    weights: list[float] = []
    for i, message in enumerate(conversation):
        if message["role"] == "assistant":
            prompt = chat.render(conversation[:i])
            said = [*chat.encode_text(message["content"]), chat.end_of_turn_ids[0]]
            weights += [context_weight] * (len(prompt) - len(ids)) + [1.0] * len(said)
            ids = prompt + said
    return ids, weights


def batches(samples: list[Sample], size: int, rng: random.Random) -> list[list[Sample]]:
    """One epoch of batches of `size` samples, in random order."""
    order = rng.sample(range(len(samples)), len(samples))
    return [[samples[i] for i in order[start : start + size]] for start in range(0, len(order) - size + 1, size)]


def build(recipe: Recipe, vocabulary: int) -> Qwen3ForCausalLM:
    torch.manual_seed(recipe.seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=recipe.hidden,
            intermediate_size=recipe.feed_forward,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.kv_heads,
            head_dim=recipe.head_size,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=2,
            pad_token_id=0,
            dtype="float32",
        )
    )


def loss_of(model: torch.nn.Module, batch: list[Sample]) -> torch.Tensor:
    longest = max(len(ids) for ids, _ in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    weights = torch.zeros(len(batch), longest)
    for row, (sample, weight) in enumerate(batch):
        ids[row, : len(sample)] = torch.tensor(sample)
        weights[row, : len(weight)] = torch.tensor(weight)
    # Padding stands on the right, so causal attention needs no mask for it.
    logits = model(input_ids=ids).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return (losses * weights[:, 1:]).sum() / weights[:, 1:].sum()


def train(model: torch.nn.Module, samples: list[Sample], recipe: Recipe) -> float:
    """Train in place; returns the mean loss of the last 50 steps."""
    rng = random.Random(recipe.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
    )
    queue: list[list[Sample]] = []
    recent: list[float] = []
    tokens, began = 0, time.monotonic()
    for step in range(recipe.steps):
        queue = queue or batches(samples, recipe.batch, rng)
        batch = queue.pop()
        decay = 1 - (1 - recipe.final_fraction) * step / recipe.steps
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * decay * min(1.0, step / recipe.warm_up_steps)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent = [*recent[-49:], loss.item()]
        tokens += sum(len(ids) for ids, _ in batch)
        if (step + 1) % 50 == 0:
            rate = tokens / (time.monotonic() - began)
            print(f"step {step + 1} loss {sum(recent) / len(recent):.4f} {rate:.0f} tokens/s", flush=True)
    return sum(recent) / len(recent)


def measure(model: torch.nn.Module, chat: ChatTokenizer, recipe: Recipe) -> dict[str, object]:
    """Pass rates on held-out tasks, and how long the rollouts are."""
    model.eval()
    repairs = [repair_of("heldout", recipe.seed, i) for i in range(recipe.measured_tasks)]
    torch.manual_seed(recipe.seed)
    sampled = roll_out(model, chat, repairs, temperature=1.0)
    greedy = roll_out(model, chat, repairs, temperature=0.0)
    turns = sorted(run.turns for run in sampled)
    written = sum(sum(run.targets) for run in sampled)
    return {
        "pass_rate_sampled": mean_reward(sampled),
        "pass_rate_greedy": mean_reward(greedy),
        "pass_rate_by_family": {name: mean_reward(runs) for name, runs in _by_family(sampled).items()},
        "turns": {"mean": sum(turns) / len(turns), "median": turns[len(turns) // 2], "max": turns[-1]},
        "turns_90th_percentile": turns[int(len(turns) * 0.9)],
        "tokens_written_per_turn": written / sum(turns),
        "tokens_per_execution": sum(len(run.ids) for run in sampled) / len(sampled),
        "longest_execution_tokens": max(len(run.ids) for run in sampled),
    }


def _by_family(runs: list[Rollout]) -> dict[str, list[Rollout]]:
    families: dict[str, list[Rollout]] = {}
    for run in runs:
        families.setdefault(run.repair.family, []).append(run)
    return dict(sorted(families.items()))


def warm_start(recipe: Recipe, out: Path, *, threads: int) -> dict[str, object]:
    """Write the policy folder; returns what `recipe.json` records."""
    torch.set_num_threads(threads)
    began = time.monotonic()
    shown = list(demonstrations(recipe.demonstrations, seed=recipe.seed))
    print(f"{len(shown)} demonstrations after {time.monotonic() - began:.0f} s", flush=True)
    texts = (f"{m['role']}\n{m['content']}" for talk in shown[: recipe.tokenizer_demonstrations] for m in talk)
    save_tokenizer(train_tokenizer(texts, vocabulary=recipe.vocabulary), out, context=CONTEXT)
    chat = ChatTokenizer(out)
    samples = [encode(chat, talk, recipe.context_weight) for talk in shown]
    lengths = [len(ids) for ids, _ in samples]
    print(f"vocabulary {chat.vocab_size}, {sum(lengths)} tokens, longest {max(lengths)}", flush=True)
    model = build(recipe, chat.vocab_size)
    loss = train(model, samples, recipe)
    model.save_pretrained(out)
    record: dict[str, object] = {
        "recipe": asdict(recipe),
        "vocabulary": chat.vocab_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "demonstration_tokens": sum(lengths),
        "final_loss": loss,
        "measured": measure(model, chat, recipe),
        "torch": torch.__version__,
        "threads": threads,
        "seconds": round(time.monotonic() - began),
    }
    (out / "recipe.json").write_text(json.dumps(record, indent=2) + "\n")
    return record


def main() -> None:
    defaults = Recipe()
    parser = argparse.ArgumentParser(description="Make the demo's policy.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--demonstrations", type=int, default=defaults.demonstrations)
    arguments = parser.parse_args()
    transformers_logging.set_verbosity_error()
    recipe = Recipe(seed=arguments.seed, steps=arguments.steps, demonstrations=arguments.demonstrations)
    print(json.dumps(warm_start(recipe, arguments.out, threads=arguments.threads), indent=2))


if __name__ == "__main__":
    main()

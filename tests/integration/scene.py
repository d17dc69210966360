"""What integration tests run on: a tiny random policy, three small tasks, a scripted paced engine.

The policy is real (Qwen3 architecture, byte-level BPE, our chat template) but random, so what the "model" says comes
from a script: even members of a group solve their task, odd ones do not. Results made with it say `paced`.
"""

import json
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from infra.demo.bpe import save_tokenizer, train_tokenizer
from infra.settings.fleet import Fleet, PacedEngine
from workflows.messages.burst import BurstSpec, Limits, PolicySettings, Purpose, Sampling, Training
from workflows.messages.fleet import CellSpec

CONTEXT = 2048
LIMIT_SECONDS = 600
"""Of an agent and of its tests: none comes near it, however busy the machine."""
SUBMIT = "$ echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def write_policy(folder: Path, *, seed: int = 0) -> Path:
    """A two-layer policy with its tokenizer, as a Hugging Face folder."""
    texts = [
        "Answer with one shell command.",
        "Write hello to out.txt.",
        SUBMIT,
        "$ echo hello > out.txt",
        "0\n",
        "1\n",
    ]
    tokenizer = train_tokenizer(texts * 4, vocabulary=400)
    save_tokenizer(tokenizer, folder, context=CONTEXT)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
        dtype="float32",
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def write_tasks(folder: Path, count: int = 6) -> Path:
    """`count` training and two held-out tasks in the Harbor layout: out.txt must say hello."""
    for split, number in (("train", count), ("heldout", 2)):
        for index in range(number):
            task = folder / split / f"hello-{index:02d}"
            (task / "environment").mkdir(parents=True)
            (task / "tests").mkdir()
            (task / "environment" / "README").write_text(f"task {index}\n")
            (task / "instruction.md").write_text(f"Write hello to out.txt. This is task {index}.\n")
            (task / "task.toml").write_text(
                f'version = "1.0"\n[agent]\ntimeout_sec = {LIMIT_SECONDS}\n[verifier]\ntimeout_sec = {LIMIT_SECONDS}\n'
            )
            test = task / "tests" / "test.sh"
            test.write_text(
                'logs="${GYRE_LOGS_DIR:-/logs}"\ncd "${GYRE_WORKSPACE:-/app}" || exit 1\n'
                'mkdir -p "$logs/verifier"\nreward=0\n[ "$(cat out.txt 2>/dev/null)" = hello ] && reward=1\n'
                'echo "$reward" > "$logs/verifier/reward.txt"\n'
            )
            test.chmod(0o755)
    return folder


def write_script(path: Path, *, turns: int = 2) -> Path:
    """Even members write hello, odd ones do not; then `turns` - 2 looks around, then the submission."""
    looks = ["$ cat out.txt"] * (turns - 2)
    rules = [
        {"session": "/[0-9]*[02468]$", "match": "", "replies": ["$ echo hello > out.txt", *looks, SUBMIT]},
        {"session": "", "match": "", "replies": ["$ echo nothing > out.txt", *looks, SUBMIT]},
    ]
    path.write_text(json.dumps({"rules": rules}))
    return path


def paced_fleet(
    folder: Path, *, run: str = "paced", cells: int = 3, turns: int = 4, tokens_per_second: float = 60
) -> Fleet:
    """A fleet of paced cells on the scene's own policy, tasks and script."""
    return Fleet(
        run=run,
        model=str(write_policy(folder / "policy")),
        context_tokens=CONTEXT,
        cells=tuple(CellSpec(index=index, engine="paced", slots=4, kv_tokens=16384) for index in range(cells)),
        paced=PacedEngine(
            tokens_per_second=tokens_per_second, script=str(write_script(folder / "script.json", turns=turns))
        ),
        task_sets={"hello": str(write_tasks(folder / "tasks"))},
    )


def burst(run: str, name: str = "first", **changes: object) -> BurstSpec:
    """A small training burst on the scene's tasks."""
    spec = BurstSpec(
        run=run,
        name=name,
        purpose=Purpose.TRAIN,
        tasks="hello",
        groups_per_step=2,
        executions_per_group=4,
        steps=2,
        sampling=Sampling(max_call_tokens=64),
        limits=Limits(wall_seconds=LIMIT_SECONDS, evaluator_seconds=LIMIT_SECONDS),
        policy=PolicySettings(hold_seconds=0.5),
        training=Training(token_budget=256),
    )
    return spec.model_copy(update=changes)

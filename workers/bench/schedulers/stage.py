"""What a comparison's stack is given: a model folder, a task for every group, the fleet, the bursts."""

import json
from pathlib import Path

import numpy as np

from infra.settings.fleet import Fleet, PacedEngine, PacedTrainer
from infra.tasks import positions
from infra.weights.architecture import Architecture
from infra.weights.names import hf_shapes
from infra.weights.plain import save_arrays
from workers.bench.schedulers.host import PLAN_FILE
from workers.bench.schedulers.workload import Workload
from workers.supervisor.run_folder import CHECKOUT
from workflows.messages.burst import BurstSpec, CampaignSpec, HarnessChoice, Limits, Sampling, Training
from workflows.messages.fleet import CellSpec
from workflows.messages.policies import PolicySettings

RUN, CAMPAIGN = "bench-schedulers", "c"
CONTEXT_TOKENS = 16384
TOKEN_BUDGET = 1
"""One path a micro-step, the finest that flat paths can be cut."""
_TOKENIZER = CHECKOUT / "infra" / "demo" / "policy"
_SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
_HEADS = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8}


def write_model(folder: Path) -> Path:
    """A model folder with the demo's tokenizer and weights of a few thousand numbers: nobody computes with them."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((_TOKENIZER / "config.json").read_text())
    config |= {**_SIZES, **_HEADS, "max_position_embeddings": CONTEXT_TOKENS, "layer_types": ["full_attention"]}
    random = np.random.default_rng(0)
    shapes = hf_shapes(Architecture.from_config(config))
    arrays = {name: random.normal(0, 0.02, shape).astype(np.float32) for name, shape in shapes.items()}
    save_arrays(folder, arrays, _TOKENIZER)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder


def write_tasks(folder: Path, workload: Workload) -> Path:
    """A task for every group, so named that group g of the workload is the g-th that is dispatched."""
    order = positions(len(workload.groups), seed=workload.seed, start=0, count=len(workload.groups))
    for group, place in zip(workload.groups, order, strict=True):
        task = folder / f"{place:05d}"
        for name in ("environment", "tests"):
            (task / name).mkdir(parents=True, exist_ok=True)
        plan = [
            {"turns": [[turn.asked, turn.answer, turn.tool_seconds] for turn in one.turns], "reward": one.reward}
            for one in group
        ]
        (task / "task.toml").write_text('version = "1.0"\n')
        (task / "instruction.md").write_text(f"Carry out {PLAN_FILE}.\n")
        (task / "tests" / "test.sh").write_text("exit 1\n")
        (task / PLAN_FILE).write_text(json.dumps(plan))
    return folder


def fleet_of(workload: Workload, model: Path) -> Fleet:
    """Equal cells, all paced."""
    return Fleet(
        run=RUN,
        model=str(model),
        context_tokens=CONTEXT_TOKENS,
        cells=tuple(
            CellSpec(index=index, engine="paced", slots=workload.slots, kv_tokens=workload.slots * CONTEXT_TOKENS)
            for index in range(workload.cells)
        ),
        paced=PacedEngine(
            tokens_per_second=workload.tokens_per_second,
            prefill_tokens_per_second=1e9,
            script="workers.bench.schedulers.speech:reply",
        ),
        trainer="paced",
        paced_trainer=PacedTrainer(
            tokens_per_second=workload.training_tokens_per_second, update_seconds=workload.update_seconds
        ),
        harness_slots=workload.cells * workload.slots,
        isolation="off",
        kv_handoff=False,
        keep_workspaces=False,
    )


def campaign_of(workload: Workload, tasks: Path, policy: PolicySettings) -> CampaignSpec:
    """All bursts of the workload under one policy."""
    most = max(turn.answer for group in workload.groups for one in group for turn in one.turns)
    burst = BurstSpec(
        run=RUN,
        name=CAMPAIGN,
        tasks=str(tasks),
        seed=workload.seed,
        groups_per_step=workload.groups_per_step,
        executions_per_group=workload.executions_per_group,
        steps=workload.steps,
        carry_over=workload.carry_over,
        sampling=Sampling(max_call_tokens=most + 8),
        harness=HarnessChoice(name="command", settings={"command": "true"}),
        limits=Limits(wall_seconds=10 * workload.longest_seconds + 300),
        policy=policy,
        training=Training(token_budget=TOKEN_BUDGET),
    )
    return CampaignSpec(run=RUN, name=CAMPAIGN, bursts=workload.bursts, burst=burst)

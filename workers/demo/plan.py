"""What the demo runs: fleet, bursts, campaign. Numbers here are the demo's; everything else is the product's."""

from dataclasses import dataclass
from pathlib import Path

from infra.settings.fleet import Fleet
from workflows.messages.burst import (
    BurstSpec,
    CampaignSpec,
    HarnessChoice,
    Limits,
    PolicySettings,
    Purpose,
    Sampling,
    Training,
)
from workflows.messages.fleet import CellSpec

RUN = "demo"
TASKS = "demo"


@dataclass(frozen=True)
class DemoPlan:
    """Sizes of the demo. `bursts` x `steps` updates of `groups` x `members` executions each."""

    heldout_tasks: int = 48
    training_tasks: int = 240
    bursts: int = 4
    steps: int = 2
    groups: int = 8
    members: int = 8
    learning_rate: float = 2e-4
    seed: int = 0
    greedy: bool = True
    slots: int = 8

    def fleet(self, tasks: Path) -> Fleet:
        """Three cells with real engines: the core and two satellites."""
        return Fleet(
            run=RUN,
            cells=tuple(CellSpec(index=index, slots=self.slots, kv_tokens=16384) for index in range(3)),
            harness_slots=24,
            task_sets={TASKS: str(tasks)},
        )

    def evaluation(self, name: str, *, temperature: float) -> BurstSpec:
        """All held-out tasks once, with the same seeds whatever the name."""
        return BurstSpec(
            run=RUN,
            name=name,
            purpose=Purpose.EVALUATE,
            tasks=TASKS,
            split="heldout",
            seed=self.seed,
            groups_per_step=self.heldout_tasks,
            executions_per_group=1,
            steps=1,
            sampling=Sampling(temperature=temperature, max_call_tokens=96),
            harness=HarnessChoice(name="mini-swe-agent", client="thin"),
            limits=Limits(wall_seconds=60),
        )

    def campaign(self) -> CampaignSpec:
        """The training: bursts of `steps` updates, satellites joining by the waterlevel rule."""
        burst = BurstSpec(
            run=RUN,
            name="train",
            tasks=TASKS,
            split="train",
            seed=self.seed,
            groups_per_step=self.groups,
            executions_per_group=self.members,
            steps=self.steps,
            sampling=Sampling(temperature=1.0, max_call_tokens=96),
            harness=HarnessChoice(name="mini-swe-agent", client="thin"),
            limits=Limits(wall_seconds=60),
            policy=PolicySettings(supply_fraction=0.25, hold_seconds=0.5, in_flight_depth=2),
            training=Training(learning_rate=self.learning_rate, token_budget=512),
        )
        return CampaignSpec(run=RUN, name="train", bursts=self.bursts, burst=burst)

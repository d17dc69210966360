"""A run folder with one group of executions that branch, processed, admitted and packed by the product's own code."""

import asyncio
import time
from pathlib import Path

from sqlalchemy import insert, update

from activities.trajectories.admission import AdmissionActivities
from activities.trajectories.artifact import encode_trajectory
from activities.trajectories.calls import load_calls
from activities.trajectories.growth import grow
from activities.trajectories.harvest import harvest
from activities.trajectories.packing import PackingActivities
from activities.trajectories.processing import summary
from infra.objects import ObjectStore
from infra.records import schema
from infra.records.database import open_database
from infra.records.tokens import pack_ids, pack_logprobs
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest
from infra.tokenizer import ChatTokenizer
from workflows.messages.artifacts import ArtifactRef
from workflows.messages.burst import Selection, Training
from workflows.messages.group import AdmitGroup, PackGroup

CHECKOUT = Path(__file__).parents[3]
BATCH = "cli/batch/first/0"
REWARDS = (1.0, 0.0, None)


class Recorded:
    """The run; `name(member)` is an execution."""

    def __init__(self, folder: Path) -> None:
        fleet = Fleet(run="cli")
        self.manifest = RunManifest(
            fleet=fleet,
            root=str(CHECKOUT),
            run_dir=str(folder),
            temporal_address="none",
            proxy_port=1,
            proxy_admin_port=2,
            engine_ports=(1, 2, 3),
            actor_ports=(1, 2, 3),
            linker_ports=(1, 2, 3),
        )
        self.manifest.save()
        self.folder = folder
        self.engine = open_database(self.manifest.database_url, create=True)
        self.objects = ObjectStore(self.manifest.object_store_url)
        self._tokenizer = ChatTokenizer(self.manifest.model_folder)
        for member, reward in enumerate(REWARDS):
            self._execution(member, reward)

    def name(self, member: int) -> str:
        return f"cli/execution/first/0000/{member:02d}"

    def admit(self, **training) -> None:
        """Admit the group at version 3."""
        request = AdmitGroup(
            run="cli",
            burst="first",
            group=0,
            executions=tuple(self.name(member) for member in range(len(REWARDS))),
            training=Training(**training),
            version=3,
        )
        asyncio.run(AdmissionActivities(self.engine).admit_group(request))

    def pack(self, layout="tree") -> None:
        request = PackGroup(
            run="cli",
            batch=BATCH,
            burst="first",
            group=0,
            first_index=0,
            token_budget=2048,
            temperature=1.0,
            layout=layout,
        )
        self._insert(
            schema.batches, batch=BATCH, run="cli", burst="first", step=0, opened_at=time.time(), version_before=3
        )
        asyncio.run(PackingActivities(self.engine, self.objects).pack_group(request))

    def commit(self) -> None:
        done = [{"index": 0, "attempt": 1, "cell": 2, "boot_epoch": 4}]
        with self.engine.begin() as connection:
            connection.execute(
                update(schema.batches).values(committed_at=time.time(), version_after=4, accepted=done, normalizer=2)
            )
            connection.execute(update(schema.groups).values(batch=BATCH, consumed_version=3))

    def _execution(self, member: int, reward: float | None) -> None:
        execution, now = self.name(member), time.time()
        self._insert(
            schema.executions,
            execution=execution,
            run="cli",
            burst="first",
            group_index=0,
            member=member,
            purpose="train",
            task="/somewhere/tasks/repair",
            harness="made-up",
            client="thin",
            seed=7,
            dispatch_version=2,
            sampling={},
            call_limit=10,
            token_sha256="",
            attempt=1,
            state="closed",
            workspace="",
            prepared_at=now,
            closed_at=now,
            end_reason="wall_limit",
            outcome="evaluator_failed" if reward is None else "scored",
            reward=reward,
            model_calls=4,
            detail="no reward file" if reward is None else "",
        )
        system = [{"role": "system", "content": "You repair code."}]
        first = [*system, {"role": "user", "content": f"Fix <b>it</b>, member {member}."}]
        one = self._call(execution, 0, first, "looking", "main")
        two = [*first, {"role": "assistant", "content": "looking"}, {"role": "user", "content": "a.py"}]
        self._call(execution, 1, two, "done", "main", parent=one)
        again = [*first, {"role": "assistant", "content": "looking"}, {"role": "user", "content": "b.py"}]
        self._call(execution, 2, again, "hm", "main", parent=one)
        self._call(execution, 3, [{"role": "user", "content": "Title?"}], "A title", "side")
        with self.engine.connect() as connection:
            grown = grow(execution, load_calls(connection, execution), seed=7, selection=Selection())
        trajectory = harvest(grown)
        payload: ArtifactRef = self.objects.put(f"trajectories/{execution}.safetensors", encode_trajectory(trajectory))
        stored = {
            "payload": payload.model_dump(mode="json"),
            "processed": summary(grown, trajectory).model_dump(mode="json"),
        }
        with self.engine.begin() as connection:
            where = schema.executions.c.execution == execution
            connection.execute(update(schema.executions).where(where).values(trajectory=stored))

    def _call(
        self,
        execution: str,
        sequence: int,
        messages: list[dict[str, str]],
        answer: str,
        role: str,
        parent: tuple[str, list[int]] | None = None,
    ) -> tuple[str, list[int]]:
        name = f"{execution[-2:]}-{sequence}"
        output = [*self._tokenizer.encode_text(answer), self._tokenizer.end_of_turn_ids[-1]]
        prompt = self._tokenizer.render(messages)
        shared = 0
        if parent is not None:
            while shared < min(len(prompt), len(parent[1])) and prompt[shared] == parent[1][shared]:
                shared += 1
        self._insert(
            schema.calls,
            call=name,
            execution=execution,
            attempt=1,
            sequence=sequence,
            dialect="chat",
            role=role,
            state="finished",
            started_at=time.time(),
            parent_call=parent[0] if parent else None,
            shared_tokens=shared,
            input_tail=pack_ids(prompt[shared:]),
            prompt_tokens=len(prompt),
            output_ids=pack_ids(output),
            output_logprobs=pack_logprobs([-0.5] * len(output)),
            version_spans=[[2, 1], [3, len(output) - 1]],
            output_tokens=len(output),
        )
        return name, prompt + output

    def _insert(self, table, **values) -> None:
        with self.engine.begin() as connection:
            connection.execute(insert(table).values(values))

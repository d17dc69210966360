"""Records as the proxy would leave them, in a real database, and the activities on them."""

import time
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, insert, update

from infra.objects import ObjectStore
from infra.records.executions import ExecutionRecords, execution_of
from infra.records.schema import calls, executions
from infra.records.tokens import pack_ids, pack_logprobs
from workflows.messages.execution import EndReason, Evaluation, ExecutionSpec, HarnessRun, Outcome


@pytest.fixture
def engine(database: Engine) -> Engine:
    """Admission, processing and packing are proven on both databases."""
    return database


@pytest.fixture
def objects(tmp_path) -> ObjectStore:
    return ObjectStore(f"file://{tmp_path / 'objects'}")


@pytest.fixture
def record_call(engine: Engine) -> Callable[..., str]:
    """Writes one call's row, its prompt whole (no parent)."""

    def record(
        spec: ExecutionSpec,
        sequence: int,
        prompt: list[int],
        output: list[int],
        *,
        role: str = "main",
        state: str = "finished",
        spans: list[list[int]] | None = None,
    ) -> str:
        name = f"{spec.member}-{sequence}"
        with engine.begin() as connection:
            connection.execute(
                insert(calls).values(
                    call=name,
                    execution=execution_of(spec),
                    attempt=1,
                    sequence=sequence,
                    dialect="chat",
                    role=role,
                    state=state,
                    started_at=time.time(),
                    input_tail=pack_ids(prompt),
                    prompt_tokens=len(prompt),
                    output_ids=pack_ids(output),
                    output_logprobs=pack_logprobs([-0.5 - 0.01 * place for place in range(len(output))]),
                    version_spans=spans or [[3, len(output)]],
                    output_tokens=len(output),
                )
            )
        return name

    return record


@pytest.fixture
def close(engine: Engine) -> Callable[..., None]:
    """Writes the row of an execution as closed, its score included; reward None: the grader failed."""

    def write(spec: ExecutionSpec, reward: float | None) -> None:
        records = ExecutionRecords(engine)
        outcome = Outcome.EVALUATOR_FAILED if reward is None else Outcome.SCORED
        evaluation = Evaluation(outcome=outcome, reward=reward, evaluator="" if reward is None else "e" * 64)
        records.close(spec, HarnessRun(end=EndReason.SUBMITTED), evaluation)

    return write


@pytest.fixture
def set_reward(engine: Engine) -> Callable[[str, float], None]:
    def write(execution: str, reward: float) -> None:
        with engine.begin() as connection:
            connection.execute(update(executions).where(executions.c.execution == execution).values(reward=reward))

    return write

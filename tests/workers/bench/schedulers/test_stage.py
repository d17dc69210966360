"""What a stack of the comparison is given, and what its harness and its engines make of it."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from infra.tasks import TaskSet, load_task
from infra.weights.plain import load_arrays
from tests.workers.bench.schedulers.test_workload import small
from workers.bench.schedulers import harness, speech, stage
from workers.bench.schedulers.compare import PARTS
from workers.bench.schedulers.host import read_plan
from workers.cell.rollout.paced.script import Conversation


def test_groups_are_dispatched_in_the_order_of_the_file(tmp_path: Path) -> None:
    workload = small()
    numbered = tuple(
        tuple(one.model_copy(update={"turns": one.turns * (group + 1)}) for one in members)
        for group, members in enumerate(workload.groups)
    )
    workload = workload.model_copy(update={"groups": numbered})
    folder = stage.write_tasks(tmp_path, workload)
    drawn = TaskSet(folder).sample("train", seed=workload.seed, start=0, count=len(numbered))
    plans = [read_plan(load_task(task).folder, 1) for task in drawn]
    assert [len(turns) for turns, _ in plans] == [2, 4, 6, 8]
    assert plans[0] == ([(4, 10, 0.5)] * 2, 1.0)


def test_answers_have_the_length_that_is_asked_for() -> None:
    tokenizer = Tokenizer.from_file(str(stage._TOKENIZER / "tokenizer.json"))
    said = speech.reply(Conversation((("user", "say 57 ~~~"),)))
    assert said is not None
    assert len(tokenizer.encode(said, add_special_tokens=False).ids) == 56
    assert speech.reply(Conversation((("user", "hello"),))) is None


def test_the_model_is_one_that_the_project_loads(tmp_path: Path) -> None:
    arrays = load_arrays(stage.write_model(tmp_path / "model"))
    assert sum(array.size for array in arrays.values()) < 10_000


def test_equal_cells_and_the_policy_as_told(tmp_path: Path) -> None:
    workload = small(carry_over=0.5, steps=1, bursts=2)
    fleet = stage.fleet_of(workload, tmp_path)
    assert {(cell.engine, cell.slots) for cell in fleet.cells} == {("paced", 2)}
    assert fleet.trainer == "paced"
    policy = PARTS["heavy-tailed"].policies["colocate"]
    campaign = stage.campaign_of(workload, tmp_path, policy)
    assert campaign.burst.policy == policy
    # What the bursts dispatch in all, one after the other, is what the file holds.
    first, last = (campaign.nth(index).quota for index in range(2))
    assert first + (last - (first - workload.groups_per_step)) == len(workload.groups)


def test_the_harness_reads_urls_and_chunked_answers() -> None:
    assert harness.address("http://127.0.0.1:8000/x/tok") == (
        "127.0.0.1",
        8000,
        "/x/tok/v1/chat/completions",
    )
    assert harness.unchunked(b"3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n") == b"abcde"
    assert harness.said(b'{"choices":[{"message":{"content":"~~"}}]}') == "~~"


@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_part_can_be_run(part: str) -> None:
    told = PARTS[part]
    assert told.subject in told.policies
    assert set(told.least) <= set(told.policies)

"""The parts of the comparison: who runs what, against whom, and what must come of it."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from infra.checkpoints.code_version import code_version
from infra.records.database import open_database
from infra.settings.run import load_run
from infra.simulator.recorded import RecordedRun, read_run
from workers.bench.schedulers.prediction import best_split, predicted_seconds
from workers.bench.schedulers.report import bars_of, key_of, move_bars, rows_of
from workers.bench.schedulers.run import Contestant, Measured, Told, is_of, run_one
from workers.bench.schedulers.workload import Workload, load_workload, workload_files
from workflows.messages.base import Message
from workflows.messages.errors import InvalidInput
from workflows.messages.policies import PolicySettings, ThroughputSettings

PACED_NOTE = "paced engines and trainers (doubles); Temporal, workflows, proxy, harness host and cell workers are real"
_REMARK_CHARACTERS = 300
Found = TypeVar("Found")
RESULT = "measured.json"
"""Of one run, beside its records; written when it is over."""
_SCALED = {"supply_fraction": 0.5, "hold_seconds": 0.0, "in_flight_depth": 1}
"""Of every policy. The hold interval of the published scale (10 s of 1.93 h) is nothing at this one; a micro-step is
claimed when a cell has room for it, as in the simulator."""
_QUICK = ThroughputSettings(low_seconds=2.0, settle_seconds=10.0, sample_seconds=1.0)
"""The shortest of the published ranges; an iteration lasts seconds here."""


class Part(Message):
    """`subject` is the policy under test; `least`: what every other policy's time must be, relative to it."""

    name: str
    workloads: tuple[str, ...]
    subject: str
    policies: dict[str, PolicySettings]
    least: dict[str, float]
    most_moves: int | None = None
    predicted: bool = True


def _published(**settings: Any) -> dict[str, PolicySettings]:
    """The policies of the published comparisons, all with the same settings."""
    settings = _SCALED | settings
    return {
        "waterlevel": PolicySettings(name="waterlevel", **settings),
        "async": PolicySettings(name="async", streaming=False, **settings),
        "colocate": PolicySettings(name="colocate", streaming=False, **settings),
        "async-streaming": PolicySettings(name="async", **settings),
    }


_PUBLISHED = {
    "heavy-tailed": _published(),
    # Both free settings are the plan's best: async's split of all seven, this one of a half and a quarter.
    "published-batch": _published(supply_fraction=0.25),
    "nl2repobench": _published(),
}
PARTS = {
    **{
        name: Part(
            name=name,
            workloads=(name,),
            subject="waterlevel",
            policies=policies,
            least={"async": 1.3, "colocate": 1.3},
        )
        for name, policies in _PUBLISHED.items()
    },
    **{
        name: Part(
            name=name,
            workloads=(name,),
            subject="throughput",
            policies={
                "throughput": PolicySettings(name="throughput", throughput=_QUICK, **_SCALED),
                "async": PolicySettings(name="async", **_SCALED),
            },
            least={"async": 1.25} if name == "two-phases" else {},
            most_moves=2,
        )
        for name in ("two-phases", "two-phases-noisy")
    },
}
DEFAULT_POLICIES = {
    "heavy-tailed": ("waterlevel", "async", "colocate"),
    "published-batch": ("waterlevel", "async", "colocate"),
    "nl2repobench": ("waterlevel", "async", "colocate"),
    "two-phases": ("throughput", "async"),
    "two-phases-noisy": ("throughput",),
}


async def compare(
    part: Part,
    folder: Path,
    told: Told,
    *,
    policies: Sequence[str],
    seeds: Sequence[int] = (),
    split: int | None = None,
    slower: float = 1.0,
    resume: bool = False,
) -> dict[str, Any]:
    """Run every chosen policy on every chosen seed, one after the other.

    What is measured is kept below `folder` as it comes: each run's records and figures, and the report so far as
    `<part>.json`. `again` makes the report from those. `split` sets that of the policies that hold one, instead of
    searching it; `slower` stretches all that takes time; `resume` takes over what is there of the same workload, policy
    and code.
    """
    _known(part, policies)
    folder.mkdir(parents=True, exist_ok=True)
    measured: list[Measured] = []
    if not 0.1 <= slower <= 100:
        raise InvalidInput(f"{slower:g} is not between 0.1 and 100 times as long", field="slower")
    for drawn in _workloads(part, seeds):
        workload = drawn.stretched(slower)
        for label in policies:
            contestant = Contestant(label=label, policy=_set(part.policies[label], workload, split))
            measured.append(await _one(workload, contestant, folder, told, resume=resume))
            write_whole(folder / f"{part.name}.json", json.dumps(summary(part, folder, measured), indent=1))
    return summary(part, folder, measured)


def again(part: Part, folder: Path, *, policies: Sequence[str] = (), seeds: Sequence[int] = ()) -> dict[str, Any]:
    """The report of what `compare` left below `folder`, nothing run: predictions are made anew.

    Without `policies` and `seeds` it is of all runs that were finished. Raises InvalidInput when there is none.
    """
    _known(part, policies)
    measured: list[Measured] = []
    for workload in part.workloads:
        for place in sorted((folder / workload).glob("seed-*"), key=lambda one: int(one.name.removeprefix("seed-"))):
            found = [place / label / RESULT for label in policies or part.policies]
            runs = [Measured.model_validate_json(file.read_text()) for file in found if file.is_file()]
            measured += [run for run in runs if not seeds or run.seed in seeds]
    if not measured:
        raise InvalidInput(f"no finished run of {part.name} below {folder}", field="from")
    return summary(part, folder, measured)


def _known(part: Part, policies: Sequence[str]) -> None:
    unknown = sorted(set(policies) - part.policies.keys())
    if unknown:
        raise InvalidInput(f"{unknown[0]!r} is none of {', '.join(part.policies)}", field="policies")


def write_whole(file: Path, text: str) -> None:
    """Whoever interrupts this leaves the file from before."""
    beside = file.with_suffix(".part")
    beside.write_text(text)
    beside.replace(file)


def _workloads(part: Part, seeds: Sequence[int]) -> list[Workload]:
    found = {(name, seed): path for name in part.workloads for seed, path in workload_files(name).items()}
    missing = sorted(set(seeds) - {seed for _, seed in found})
    if missing:
        raise InvalidInput(f"no workload file of {part.name} has seed {missing[0]}", field="seeds")
    chosen = sorted(key for key in found if not seeds or key[1] in seeds)
    return [load_workload(found[key]) for key in sorted(chosen, key=lambda key: (key[1], key[0]))]


def _set(policy: PolicySettings, workload: Workload, split: int | None) -> PolicySettings:
    """With its split: the one asked for, or the best one of the plan."""
    if policy.name not in ("async", "lending"):
        return policy
    return policy.model_copy(update={"split": split or best_split(workload, policy)})


async def _one(workload: Workload, contestant: Contestant, folder: Path, told: Told, *, resume: bool) -> Measured:
    place = _place(folder, workload.name, contestant.label, workload.seed)
    result = place / RESULT
    if resume and result.is_file():
        known = Measured.model_validate_json(result.read_text())
        if is_of(known, workload, contestant.policy, code_version()):
            told(f"{contestant.label}, seed {workload.seed}: {known.seconds:.1f} s (from before)")
            return known
        told(
            f"{contestant.label}, seed {workload.seed}: the result from before is not of this workload, policy and code"
        )
    ran = await run_one(workload, contestant, place, told)
    write_whole(result, ran.measured.model_dump_json(indent=1))
    done = ran.measured
    split = f", {done.split} cells train" if done.split else ""
    told(
        f"{contestant.label}{split}, seed {workload.seed}: {done.seconds:.1f} s, E[d] {done.staleness:.2f}, "
        f"{done.moves} moves, processors {done.busy_share:.0%} busy"
    )
    return done


def _place(folder: Path, workload: str, label: str, seed: int) -> Path:
    return folder / workload / f"seed-{seed}" / label


def recorded(place: Path) -> RecordedRun:
    """The run in this folder, as the simulator reads it."""
    manifest = load_run(place / "run")
    engine = open_database(manifest.database_url)
    try:
        return read_run(engine, manifest.fleet)
    finally:
        engine.dispose()


def remark_of(run: RecordedRun) -> str:
    """What a reader should know of a run and no verdict follows from."""
    backlog = run.scenario.engines.backlog_seconds
    return f"nothing but launches in the first {backlog:.0f} s: the control plane was behind" if backlog else ""


def _prediction(part: Part, one: Measured, place: Path, read: Callable[[Path], RecordedRun]) -> float | None:
    """Seconds that the simulator says `one` should have taken; None where the subject ran other executions.

    `place`: of the subject's run of the same seed.
    """
    subject = Measured.model_validate_json((place / RESULT).read_text())
    if subject.workload_sha256 != one.workload_sha256:
        return None  # from before, of another workload
    policy = part.policies[one.label].model_copy(update={"split": one.split})
    reference = read(place)
    opening = subject.seconds - reference.seconds  # from the campaign's start to its first execution
    return opening + predicted_seconds(reference, policy)


def _tried(what: str, make: Callable[..., Found], *arguments: Any) -> tuple[Found | None, str]:
    """What `make` returns, or why `what`. Records of whatever kind may lie there, and the other runs of a comparison
    have taken many minutes: none of them is lost for one that cannot be read."""
    try:
        return make(*arguments), ""
    except Exception as error:
        return None, f"{what}: {type(error).__name__}: {error}"[:_REMARK_CHARACTERS]


def summary(part: Part, folder: Path, measured: Sequence[Measured]) -> dict[str, Any]:
    """Rows, bars and what they were made with. Predictions are made from the subject's run of the same seed.

    Where that cannot be read, or not be simulated, the row has no prediction and a remark that says why.
    """
    predicted: dict[tuple[str, str, int], float] = {}
    remarks: dict[tuple[str, str, int], str] = {}
    read, unpredicted = functools.cache(recorded), 0
    for one in measured:
        said: list[str | None] = []
        place = _place(folder, one.workload, one.label, one.seed)
        if (place / RESULT).is_file():
            said += _tried("its records cannot be read", lambda at: remark_of(read(at)), place)
        place = _place(folder, one.workload, part.subject, one.seed)
        if part.predicted and (place / RESULT).is_file():
            seconds, fault = _tried("no prediction", _prediction, part, one, place, read)
            if seconds is not None:
                predicted[key_of(one)] = seconds
            unpredicted += bool(fault)
            said.append(fault)
        remarks[key_of(one)] = "; ".join(filter(None, said))
    rows = rows_of(measured, predicted, part.subject, remarks)
    bars = bars_of(rows, part.subject, part.least, unpredicted=unpredicted)
    if part.most_moves is not None:
        bars += move_bars(rows, part.subject, part.most_moves)
    return {
        "part": part.name,
        "note": PACED_NOTE,
        "rows": [row.model_dump(mode="json") for row in rows],
        "bars": [bar.model_dump(mode="json") for bar in bars],
        "runs": [json.loads(one.model_dump_json()) for one in measured],
    }

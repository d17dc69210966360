"""What a comparison says: a row for every run, ratios against the policy under test, and the bars."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType

from workers.bench.schedulers.run import Measured
from workflows.messages.base import Message

PREDICTED_WITHIN = 0.10
BUSY_SHARE = 0.8
"""Above it a run measured the machine as well."""


class Row(Message):
    """One run. `ratio`: its time over that of the policy under test, same executions; `error`: of the prediction;
    `note`: why it decides nothing; `remark`: what else a reader should know."""

    name: str
    workload: str
    label: str
    policy: str
    seed: int
    split: int | None
    seconds: float
    ratio: float | None
    simulated: float | None
    error: float | None
    staleness: float
    moves: int
    planned_moves: tuple[int, ...]
    busy_share: float
    note: str = ""
    remark: str = ""


class Bar(Message):
    """One acceptance bar: what was found, what is asked, whether it is met; None: a run it needs is in doubt."""

    name: str
    value: float | str
    bar: str
    met: bool | None


def key_of(one: Measured) -> tuple[str, str, int]:
    return one.workload, one.label, one.seed


def rows_of(
    measured: Sequence[Measured],
    predicted: dict[tuple[str, str, int], float],
    subject: str,
    remarks: Mapping[tuple[str, str, int], str] = MappingProxyType({}),
) -> list[Row]:
    """A row for every run, in their order. `predicted`: seconds by `key_of`, as `remarks`.

    What was kept from before another draw of the workload has no ratio: it ran other executions.
    """
    subjects = {_work(one): one.seconds for one in measured if one.label == subject}
    return [
        _row(one, predicted.get(key_of(one)), subjects.get(_work(one)), remarks.get(key_of(one), ""))
        for one in measured
    ]


def _work(one: Measured) -> tuple[str, int, str]:
    return one.workload, one.seed, one.workload_sha256


def _row(one: Measured, simulated: float | None, subject: float | None, remark: str) -> Row:
    return Row(
        name=f"{one.workload}{_scale(one)}, seed {one.seed}: {one.label}",
        workload=one.workload,
        label=one.label,
        policy=one.policy,
        seed=one.seed,
        split=one.split,
        seconds=one.seconds,
        ratio=round(one.seconds / subject, 4) if subject else None,
        simulated=round(simulated, 2) if simulated is not None else None,
        error=round(simulated / one.seconds - 1, 4) if simulated is not None else None,
        staleness=one.staleness,
        moves=one.moves,
        planned_moves=one.planned_moves,
        busy_share=one.busy_share,
        note=_note(one),
        remark=remark,
    )


def _scale(one: Measured) -> str:
    return f", {one.slower:g} times as slow" if one.slower != 1 else ""


def _note(one: Measured) -> str:
    notes = []
    if one.submitted != one.executions:
        notes.append(f"{one.executions - one.submitted} of {one.executions} executions were not submitted")
    if one.busy_share > BUSY_SHARE:
        notes.append(f"processors {one.busy_share:.0%} busy: the machine was measured as well")
    return "; ".join(notes)


def bars_of(rows: Iterable[Row], subject: str, least: dict[str, float], *, unpredicted: int = 0) -> list[Bar]:
    """`least`: the ratio that each other policy must reach in every seed. Predictions are judged over all rows;
    `unpredicted`: rows for which one should have been made and could not be.

    A row with a note decides nothing, nor does what was set against one: what is left can only fail a bar.
    """
    rows = list(rows)
    noted = {(row.workload, row.seed) for row in rows if row.label == subject and row.note}

    def doubts(found: list[Row]) -> list[bool]:
        return [bool(row.note) or (row.workload, row.seed) in noted for row in found]

    bars: list[Bar] = []
    for label, ratio in least.items():
        found = [row for row in rows if row.label == label and row.ratio is not None]
        if found:
            bars.append(
                Bar(
                    name=f"{label} / {subject}",
                    value=", ".join(f"{row.ratio:.3f}" for row in found),
                    bar=f">= {ratio:g} in every seed",
                    met=_verdict([(row.ratio or 0) >= ratio for row in found], doubts(found)),
                )
            )
    sound = [row for row in rows if not row.note]
    stale = {row.label: round(fmean(r.staleness for r in rows if r.label == row.label), 3) for row in rows}
    if len(stale) > 1:
        means = [fmean(r.staleness for r in sound if r.label == label) for label in {row.label for row in sound}]
        equal = not means or max(means) - min(means) <= 0.05
        met = _verdict([equal, True], [False, len(sound) < len(rows)])
        bars.append(Bar(name="equal E[d]", value=f"{stale}", bar="within 0.05", met=met))
    predicted = [row for row in rows if row.error is not None]
    if predicted or unpredicted:
        errors = [abs(row.error or 0) for row in predicted]
        met = [error <= PREDICTED_WITHIN for error in errors] + [True] * unpredicted
        bars.append(
            Bar(
                name="largest error of a prediction",
                value=round(max(errors), 4) if errors else "none could be made",
                bar=f"<= {PREDICTED_WITHIN:g}",
                met=_verdict(met, doubts(predicted) + [True] * unpredicted),
            )
        )
    return bars


def move_bars(rows: Iterable[Row], policy: str, most: int) -> list[Bar]:
    """At most `most` planned moves in each phase of each run of `policy`."""
    found = [row for row in rows if row.label == policy]
    if not found:
        return []
    met = [all(count <= most for count in row.planned_moves) for row in found]
    value = "; ".join(f"{row.name}: {'/'.join(map(str, row.planned_moves))}" for row in found)
    verdict = _verdict(met, [bool(row.note) for row in found])
    return [Bar(name=f"planned moves of {policy} by phase", value=value, bar=f"<= {most} a phase", met=verdict)]


def _verdict(met: Sequence[bool], doubts: Sequence[bool]) -> bool | None:
    """Of what is judged one by one: failed by any that is not in doubt, else open while any is."""
    if not all(good for good, doubt in zip(met, doubts, strict=True) if not doubt):
        return False
    return None if any(doubts) else True

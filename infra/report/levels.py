"""Waterlevel and capacity over time, as step functions (moments [n], levels [n]; a level holds from its moment on)."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from infra.report import intervals
from infra.report.changes import Entry, Roles

Steps = tuple[np.ndarray, np.ndarray]


def waterlevel(entries: Sequence[Entry], closed_at: Iterable[float]) -> Steps:
    """w = d - f: as the Scheduler counted it at every entry of the ledger, and between two of them one less with every
    execution that closed. (Every dispatch is an entry, so nothing else can happen in between.)"""
    counted = sorted((entry.at, entry.waterlevel) for entry in entries if entry.waterlevel is not None)
    if not counted:
        return np.empty(0), np.empty(0)
    starts = np.array([at for at, _ in counted])
    closes = np.sort(np.array([moment for moment in closed_at if moment > starts[0]]))
    of_entry = np.searchsorted(starts, closes, side="right") - 1
    nth = np.arange(len(closes)) - np.searchsorted(of_entry, of_entry) + 1
    levels = np.array([level for _, level in counted], dtype=np.float64)
    moments = np.concatenate((starts, closes))
    values = np.concatenate((levels, np.maximum(0.0, levels[of_entry] - nth)))
    order = np.argsort(moments, kind="stable")
    return moments[order], values[order]


def capacity(roles: Roles, slots: Mapping[int, int]) -> Steps:
    """C_R: slots of the cells in rollout, from the recorded role changes."""
    spans = [span for cell in roles.spans for span in roles.of(cell, "rollout")]
    pairs = np.array([(span.begin, span.end) for span in spans]).reshape(-1, 2)
    return intervals.steps(pairs, np.array([float(slots.get(span.cell, 0)) for span in spans]))


def at(steps: Steps, moments: np.ndarray) -> np.ndarray:
    """Levels [n] at these moments; 0 before the first."""
    known, levels = steps
    index = np.searchsorted(known, moments, side="right") - 1
    return np.where(index >= 0, np.concatenate((levels, [0.0]))[index], 0.0)


def free(level: Steps, slots: Steps, end: float) -> intervals.Intervals:
    """When the slots there were covered all the work there was: disjoint intervals with w <= C_R, until `end`."""
    moments = np.union1d(level[0], slots[0])
    moments = moments[moments < end]
    if not len(moments):
        return intervals.NONE
    covered = at(level, moments) <= at(slots, moments)
    pairs = np.stack((moments, np.append(moments[1:], end)), axis=1)
    return intervals.merged(pairs[covered])

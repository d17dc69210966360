"""The plots of a run's page, each as one piece of SVG. Times are counted from the run's first record."""

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from infra.report import levels
from infra.report.account import Account
from infra.report.leaders import Leaders
from infra.report.queries import Durations

ROLE_COLORS = {
    "rollout": "#4c9bd6",
    "training": "#3aa655",
    "to_training": "#e2b93b",
    "to_rollout": "#e2b93b",
    "publishing": "#a9d2ee",
    "starting": "#b0b0b0",
    "parked": "#c0392b",
    "lost": "#c0392b",
    "retiring": "#e2b93b",
    "retired": "#f4f4f4",
}
_ROLE_LEGEND = {
    "rollout": "rollout",
    "loading weights": "publishing",
    "training": "training",
    "changing role": "to_training",
    "starting": "starting",
    "parked": "parked",
    "gone": "retired",
}
_USES = (
    ("serving", "serving requests", "#4c9bd6"),
    ("idle", "in rollout, idle while work was out", "#f4a582"),
    ("unused", "in rollout, no work out", "#e6e6e6"),
    ("training", "micro-steps", "#3aa655"),
    ("updating", "combine and update", "#95d3a2"),
    ("waiting", "in training, waiting", "#d6604d"),
    ("changing", "changing role", "#e2b93b"),
    ("publishing", "loading weights", "#a9d2ee"),
    ("starting", "starting", "#b0b0b0"),
    ("parked", "parked", "#c0392b"),
    ("retired", "gone", "#f4f4f4"),
)
_UNITS = ((3600.0 * 3, 3600.0, "hours"), (60.0 * 10, 60.0, "minutes"), (0.0, 1.0, "seconds"))
Draw = Callable[[Any], None]


def unit(seconds: float) -> tuple[float, str]:
    """The unit in which a run of this length is shown: its seconds, its name."""
    return next((size, name) for least, size, name in _UNITS if seconds >= least)


def svg(draw: Draw, height: float, width: float = 10.0) -> str:
    """One figure as an SVG element for a page; `draw` gets the axes. Inches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "gyre", "font.size": 9, "font.family": "sans-serif"}
    with matplotlib.rc_context(settings):
        figure, axis = pyplot.subplots(figsize=(width, height), layout="constrained")
        axis.spines[["top", "right"]].set_visible(False)
        draw(axis)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
        pyplot.close(figure)
    # What stands before the element belongs to a file of its own; its metadata name addresses that nobody needs.
    return re.sub(r"^.*?(?=<svg)|<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)


def roles(account: Account) -> str:
    """Who served and who trained when."""
    records = account.records
    size, name = unit(records.end - records.begin)

    def draw(axis: Any) -> None:
        from matplotlib.patches import Patch

        shown = set()
        for cell, spans in account.roles.spans.items():
            bars = [((span.begin - records.begin) / size, span.seconds / size) for span in spans]
            colors = [ROLE_COLORS.get(span.role, "#c0392b") for span in spans]
            axis.broken_barh(bars, (cell - 0.42, 0.84), facecolors=colors, linewidth=0)
            shown |= {ROLE_COLORS.get(span.role, "#c0392b") for span in spans}
        for update in records.updates:
            if update.committed_at is not None:
                axis.axvline((update.committed_at - records.begin) / size, color="#333333", linewidth=0.6, alpha=0.5)
        _cells(axis, list(account.roles.spans), Leaders(records.entries))
        axis.set_xlabel(f"{name}; thin lines: optimizer updates")
        axis.set_xlim(0, (records.end - records.begin) / size)
        legend = [
            Patch(color=ROLE_COLORS[role], label=label)
            for label, role in _ROLE_LEGEND.items()
            if ROLE_COLORS[role] in shown
        ]
        axis.legend(handles=legend, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(_ROLE_LEGEND), frameon=False)

    return svg(draw, 1.4 + 0.22 * min(40, max(2, len(account.roles.spans))))


def waterlevel(account: Account) -> str:
    """w and C_R over time."""
    records = account.records
    size, name = unit(records.end - records.begin)
    closed = [fact.closed_at for fact in records.executions if fact.closed_at is not None]
    moments, level = levels.waterlevel(records.entries, closed)
    changes, slots = levels.capacity(account.roles, records.slots)

    def draw(axis: Any) -> None:
        if len(moments):
            times = (np.append(moments, records.end) - records.begin) / size
            filled = np.append(level, level[-1])
            axis.fill_between(times, filled, step="post", color="#9ecae1", label="waterlevel w", linewidth=0)
        if len(changes):
            times = (np.append(changes, records.end) - records.begin) / size
            axis.step(times, np.append(slots, slots[-1]), where="post", color="#08519c", label="capacity C_R")
        axis.set_ylabel("executions, slots")
        axis.set_xlabel(name)
        axis.set_xlim(0, (records.end - records.begin) / size)
        axis.set_ylim(bottom=0)
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)

    return svg(draw, 2.8)


def longest(found: Durations) -> str:
    """The distribution of each query's longest execution, with the time-outs."""
    seconds = np.array([query.seconds for query in found.queries])
    near = np.array([query.near_limit for query in found.queries], dtype=bool)
    size, name = unit(float(max(seconds.max(), max(found.limit_seconds, default=0.0))))

    def draw(axis: Any) -> None:
        edges = np.linspace(0, max(seconds.max(), max(found.limit_seconds, default=0.0)) / size * 1.02, 41)
        stacked = [seconds[~near] / size, seconds[near] / size]
        labels = ["ended before its time-out", "ended near or at its time-out"]
        axis.hist(stacked, bins=edges, stacked=True, color=["#4c9bd6", "#c0392b"], label=labels)
        for limit in found.limit_seconds:
            axis.axvline(limit / size, color="#333333", linestyle="--", linewidth=1)
            axis.annotate("time-out", (limit / size, 0.97), xycoords=("data", "axes fraction"), rotation=90, va="top",
                          ha="right", fontsize=8)  # fmt: skip
        axis.set_xlim(left=0)
        axis.set_xlabel(f"{name} of a query's longest execution")
        axis.set_ylabel("queries")
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)

    return svg(draw, 2.8)


def use(account: Account) -> str:
    """What every cell spent its time on."""
    cells, leaders = account.cells, Leaders(account.records.entries)
    total = max(sum(getattr(cell, name) for name, _, _ in _USES) for cell in cells)
    size, unit_name = unit(total)

    def draw(axis: Any) -> None:
        left = np.zeros(len(cells))
        for name, label, color in _USES:
            values = np.array([getattr(cell, name) for cell in cells]) / size
            if values.any():
                axis.barh([cell.cell for cell in cells], values, left=left, color=color, label=label, height=0.84)
            left += values
        _cells(axis, [cell.cell for cell in cells], leaders)
        axis.set_xlabel(unit_name)
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=8)

    return svg(draw, 1.8 + 0.22 * min(40, max(2, len(cells))))


def staleness(account: Account) -> str:
    """Versions from dispatch to use of every execution that was trained."""
    values = [age for update in account.records.updates for age in update.staleness]

    def draw(axis: Any) -> None:
        ages, counts = np.unique(values, return_counts=True)
        axis.bar(ages, counts, color="#756bb1", width=0.8)
        mean = float(np.mean(values))
        axis.axvline(mean, color="#333333", linestyle="--", linewidth=1)
        axis.set_title(f"mean {mean:.2f}", loc="left", fontsize=9)
        axis.set_xticks(np.arange(0, max(ages) + 1))
        axis.set_xlabel("versions between an execution's dispatch and its update")
        axis.set_ylabel("executions")

    return svg(draw, 2.6, width=4.9)


def reward(account: Account) -> str:
    """Mean reward of every update's valid executions."""
    points = [
        (index, float(np.mean(update.rewards)))
        for index, update in enumerate(account.records.updates, 1)
        if update.rewards
    ]

    def draw(axis: Any) -> None:
        axis.plot(*zip(*points, strict=True), "o-", color="#3aa655", markersize=4)
        axis.set_xlabel("update")
        axis.set_ylabel("mean reward")
        axis.set_ylim(-0.02, 1.02)
        axis.xaxis.get_major_locator().set_params(integer=True)

    return svg(draw, 2.6, width=4.9)


def _cells(axis: Any, cells: list[int], leaders: Leaders) -> None:
    """One row a cell, the one that began as the core on top."""
    shown = cells if len(cells) <= 16 else [cell for cell in cells if cell % 8 == 0]
    axis.set_yticks(shown, [leaders.label(cell) for cell in shown])
    axis.invert_yaxis()

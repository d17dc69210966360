"""The role timeline: who served and who trained when, one strip per cell, one panel per variant."""

from collections.abc import Sequence
from pathlib import Path

from infra.simulator.compare import Compared

_COLORS = {"rollout": "#4c9bd6", "training": "#3aa655", "to_training": "#e2b93b", "to_rollout": "#e2b93b"}
_LEGEND = {"rollout": "rollout", "training": "training", "changing role": "to_training"}
HOUR = 3600.0


def spans(roles: Sequence[tuple[float, int, str]], end: float) -> list[tuple[int, float, float, str]]:
    """(cell, begin, end, role) of every span between two changes; `roles` as in a trace."""
    since: dict[int, tuple[float, str]] = {}
    found: list[tuple[int, float, float, str]] = []
    for at, cell, role in roles:
        if cell in since and at > since[cell][0]:
            found.append((cell, since[cell][0], at, since[cell][1]))
        since[cell] = (at, role)
    return [*found, *((cell, at, end, role) for cell, (at, role) in sorted(since.items()) if end > at)]


def draw(results: Sequence[Compared], path: Path, title: str) -> None:
    """Write a PNG; all panels share one axis of hours."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    height = 1.0 + sum(0.7 + 0.12 * len(_cells(result)) for result in results)
    figure, axes = pyplot.subplots(
        len(results), 1, figsize=(11, height), sharex=True, squeeze=False, layout="constrained"
    )
    for axis, result in zip(axes[:, 0], results, strict=True):
        by_cell: dict[tuple[int, str], list[tuple[float, float]]] = {}
        for cell, begin, end, role in spans(result.trace.roles, result.outcome.seconds):
            by_cell.setdefault((cell, role), []).append((begin / HOUR, (end - begin) / HOUR))
        for (cell, role), bars in by_cell.items():
            axis.broken_barh(bars, (cell - 0.42, 0.84), color=_COLORS[role], linewidth=0)
        axis.set_title(f"{result.variant.label}: {result.outcome.hours:.1f} h", loc="left", fontsize=9)
        axis.set_yticks([0], ["core"])
        axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("hours")
    handles = [Patch(color=_COLORS[role], label=name) for name, role in _LEGEND.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=8)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _cells(result: Compared) -> set[int]:
    return {cell for _, cell, _ in result.trace.roles}

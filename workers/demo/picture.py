"""The demo's picture: waterlevel and capacity, the cells' roles over time, reward by update."""

from pathlib import Path
from typing import Any

from infra.report.leaders import Leaders
from infra.report.plots import ROLE_COLORS
from workers.demo.watch import Look

_LEGEND = {"rollout": "rollout", "training": "training", "changing role": "to_training", "starting": "starting"}


def draw(looks: list[Look], steps: list[dict[str, Any]], leaders: Leaders, path: Path) -> None:
    """Write a PNG. Times are seconds since the first look; `leaders`: which cells were the core."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    start = looks[0].at
    times = [look.at - start for look in looks]
    figure, (level, roles, reward) = pyplot.subplots(
        3, 1, figsize=(10, 7), sharex=True, height_ratios=(3, 1.4, 2), layout="constrained"
    )
    level.fill_between(times, [look.waterlevel for look in looks], step="post", color="#9ecae1", label="waterlevel w")
    level.step(times, [look.capacity for look in looks], where="post", color="#08519c", label="rollout capacity C_R")
    level.step(times, [look.ready for look in looks], where="post", color="#e6550d", label="ready groups")
    level.set_ylabel("executions, groups")
    level.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=8)
    cells = sorted({cell for look in looks for cell in look.roles})
    for row, cell in enumerate(cells):
        for begin, end, role in spans(looks, cell):
            roles.broken_barh([(begin - start, end - begin)], (row - 0.4, 0.8), color=ROLE_COLORS.get(role, "#c0392b"))
    roles.set_yticks(range(len(cells)), [leaders.label(cell) for cell in cells])
    roles.invert_yaxis()
    roles.legend(
        handles=[Patch(color=ROLE_COLORS[role], label=name) for name, role in _LEGEND.items()],
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=len(_LEGEND),
        frameon=False,
        fontsize=8,
    )
    done = [step for step in steps if step["at"] and step["mean_reward"] is not None]
    reward.plot([step["at"] - start for step in done], [step["mean_reward"] for step in done], "o-", color="#3aa655")
    reward.set_ylabel("mean reward of a batch")
    reward.set_ylim(-0.02, 1.02)
    reward.set_xlabel("seconds")
    for axis in (level, roles, reward):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def spans(looks: list[Look], cell: int) -> list[tuple[float, float, str]]:
    """(begin, end, role) of a cell, from the looks in which it was there; times as in the looks."""
    found: list[tuple[float, float, str]] = []
    for look, following in zip(looks, [*looks[1:], looks[-1]], strict=True):
        role = look.roles.get(cell)
        if role is None:
            continue
        if found and found[-1][2] == role and found[-1][1] == look.at:
            found[-1] = (found[-1][0], following.at, role)
        else:
            found.append((look.at, following.at, role))
    return found

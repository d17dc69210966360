"""One cell's engine in a drill, boot after boot, and the truth about what was asked of it."""

from dataclasses import dataclass, field

from tests.workers.proxy.virtual import Wire
from workers.cell.rollout.paced.engine import PacedEngine


@dataclass(eq=False)
class Station:
    """One cell's engine, boot after boot."""

    cell: int
    epoch: int = 0
    version: int = 1
    engine: PacedEngine | None = None
    wire: Wire | None = None
    busy: bool = False  # somebody is changing it
    aborts: dict = field(default_factory=dict)  # rid -> what the engine had of it at each abort, in order
    ends: dict = field(default_factory=dict)  # rid -> how it ended, of every boot
    truth: dict = field(default_factory=dict)  # rid -> the version the engine really held at each token
    died: set = field(default_factory=set)  # rids that were running when a boot died

    @property
    def name(self):
        return f"cell-{self.cell}"


def watch(station, engine):
    """Keep what the engine was asked to abort and how every request ended."""
    abort, leave, say = engine.abort, engine._leave, engine._say

    def watched_abort(rid="", abort_all=False):
        if not abort_all:
            live = any(generation.rid == rid for generation in (*engine.running, *engine.waiting))
            has = "it" if live else "no more" if rid in station.ends else "not yet"
            station.aborts.setdefault(rid, []).append(has)
        abort(rid, abort_all)

    def watched_leave(generation):
        unasked = generation.finish.get("message") == "unasked"
        station.ends.setdefault(generation.rid, "fault" if unasked else generation.finish["type"])
        leave(generation)

    def watched_say(generation):
        station.truth.setdefault(generation.rid, []).append(int(engine.version))
        say(generation)

    engine.abort, engine._leave, engine._say = watched_abort, watched_leave, watched_say

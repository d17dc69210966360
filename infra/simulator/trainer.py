"""The training side of one simulated run: batches as streams of micro-steps that cells claim.

Streaming: a training cell claims the next micro-step when it has room, whoever is there shares the batch. Without
streaming the batch starts when all its groups are ready; the cells in training then get fixed, equal shares of its
groups, and whoever comes later waits for the next batch, or (`claims`) they claim as they do from a stream.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import simpy


@dataclass(slots=True)
class ReadyGroup:
    """A group whose executions are all closed. `seconds`: training time on one cell; `sizes`: of its micro-steps beside
    each other, empty for equal ones."""

    index: int
    version: int
    seconds: float
    ready_at: float
    sizes: Sequence[float] = ()


@dataclass
class Batch:
    """The open batch; nothing of it is claimed before `claims_from`. `lists`: without streaming, each cell's
    micro-steps; `done`: the seconds each cell has summed.
    """

    needed: int
    opened_at: float
    claims_from: float = 0.0
    groups: list[ReadyGroup] = field(default_factory=list)
    pending: deque[float] = field(default_factory=deque)
    lists: dict[int, deque[float]] | None = None
    done: dict[int, list[float]] = field(default_factory=dict)
    in_flight: int = 0
    updating: bool = False


class Trainer:
    """`cells`: those in training, by their index, with whether each is at work.

    `on_commit` is called with the batch when its update is done.
    """

    def __init__(
        self,
        env: simpy.Environment,
        ready: deque[ReadyGroup],
        *,
        streaming: bool,
        claims: bool = False,
        micro_steps: int,
        update_seconds: float,
        pickup_seconds: float = 0.0,
        claim_seconds: float = 0.0,
        on_commit: Callable[[Batch], None],
    ) -> None:
        self._env, self.ready, self._streaming, self._claims = env, ready, streaming, claims
        self._micro_steps, self._update_seconds = micro_steps, update_seconds
        self._pickup_seconds, self._claim_seconds = pickup_seconds, claim_seconds
        self._on_commit = on_commit
        self.on_pickup: Callable[[], None] = self.work
        self.batch: Batch | None = None
        self.cells: dict[int, bool] = {}
        self.busy_seconds = 0.0
        self.started: dict[int, float] = {}
        self._epoch: dict[int, int] = {}

    def open(self, needed: int) -> None:
        now = self._env.now
        self.batch = Batch(needed=needed, opened_at=now, claims_from=now + self._pickup_seconds)
        if self._pickup_seconds:
            self._env.timeout(self._pickup_seconds).callbacks.append(lambda _: self.on_pickup())

    def join(self, cell: int) -> None:
        self.cells[cell] = False
        self._epoch[cell] = self._epoch.get(cell, 0) + 1

    def leave(self, cell: int) -> None:
        """A cell leaves; what it summed for the open batch is lost and goes back on the stream."""
        at_work = self.cells.pop(cell)
        self._epoch[cell] += 1
        batch = self.batch
        if batch is None:
            return
        lost = batch.done.pop(cell, [])
        if at_work:
            batch.in_flight -= 1
            lost.append(self.started.pop(cell))
        if batch.lists is not None:
            lost += batch.lists.pop(cell, [])
            if self.cells:  # somebody else has to do it
                batch.lists.setdefault(min(self.cells), deque()).extend(lost)
                return
            batch.lists = None
        batch.pending.extend(lost)

    def work(self, *, may_start: bool = True) -> None:
        """Let every idle training cell claim; ends the batch when nothing is left of it.

        `may_start`: without streaming, whether a complete batch may start now.
        """
        batch = self.batch
        if batch is None or batch.updating or self._env.now < batch.claims_from - 1e-9:
            return
        if not self._streaming and not self._has_begun(batch) and not (may_start and self._begin_whole(batch)):
            return
        for cell, at_work in self.cells.items():
            if not at_work:
                seconds = self._claim(batch, cell)
                if seconds is not None:
                    self._begin(batch, cell, seconds)
        if self._is_over(batch):
            batch.updating = True
            self._env.timeout(self._update_seconds).callbacks.append(lambda _: self._commit(batch))

    def _is_over(self, batch: Batch) -> bool:
        left = batch.needed or batch.pending or batch.in_flight or any((batch.lists or {}).values())
        return not left and 0 in self.cells

    def _has_begun(self, batch: Batch) -> bool:
        return not batch.needed if self._claims else batch.lists is not None

    def _begin_whole(self, batch: Batch) -> bool:
        """Start a complete batch, if it is there."""
        # What a cell lost before is pending: it belongs to a batch that has started, and is done again.
        if 0 not in self.cells or not (batch.pending or len(self.ready) >= batch.needed):
            return False
        if self._claims:
            while batch.needed:
                batch.pending.extend(self._cut(self._assign(batch)))
            return True
        return self._distribute(batch)

    def _distribute(self, batch: Batch) -> bool:
        """Groups go round over the cells that are there."""
        batch.lists = {cell: deque() for cell in sorted(self.cells)}
        order = list(batch.lists)
        for seconds in batch.pending:
            batch.lists[order[0]].append(seconds)
        batch.pending.clear()
        place = 0
        while batch.needed:
            group = self._assign(batch)
            batch.lists[order[place % len(order)]].extend(self._cut(group))
            place += 1
        return True

    def _assign(self, batch: Batch) -> ReadyGroup:
        group = self.ready.popleft()
        batch.groups.append(group)
        batch.needed -= 1
        return group

    def _cut(self, group: ReadyGroup) -> list[float]:
        if total := sum(group.sizes):
            return [group.seconds * size / total for size in group.sizes]
        return [group.seconds / self._micro_steps] * self._micro_steps

    def _claim(self, batch: Batch, cell: int) -> float | None:
        if batch.lists is not None:
            mine = batch.lists.get(cell)
            return mine.popleft() if mine else None
        if not batch.pending and batch.needed and self.ready:
            batch.pending.extend(self._cut(self._assign(batch)))
        return batch.pending.popleft() if batch.pending else None

    def _begin(self, batch: Batch, cell: int, seconds: float) -> None:
        self.cells[cell], self.started[cell] = True, seconds
        batch.in_flight += 1
        epoch = self._epoch[cell]
        self._env.timeout(self._claim_seconds + seconds).callbacks.append(
            lambda _: self._done(batch, cell, seconds, epoch)
        )

    def _done(self, batch: Batch, cell: int, seconds: float, epoch: int) -> None:
        if self._epoch[cell] != epoch:
            return  # it left in the meantime
        self.cells[cell] = False
        self.started.pop(cell)
        batch.in_flight -= 1
        batch.done.setdefault(cell, []).append(seconds)
        self.busy_seconds += seconds
        self.work()

    def _commit(self, batch: Batch) -> None:
        self.batch = None
        self._on_commit(batch)

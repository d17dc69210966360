"""How busy cells were with micro-steps, from their claims."""

from collections import defaultdict
from collections.abc import Iterable

from sqlalchemy import Engine, or_, select

from infra.records.schema import claims

ABANDONED_SECONDS = 3600.0
"""A claim that was begun longer ago and never ended belongs to a boot that died."""


def busy_shares(engine: Engine, since: float, until: float) -> dict[int, float]:
    """Cell -> share (0..1) of [since, until] in which it had a claimed micro-step in work; seconds since the epoch."""
    overlaps = or_(claims.c.done_at.is_(None), claims.c.done_at > since)
    recent = claims.c.claimed_at > since - ABANDONED_SECONDS
    newest = select(claims.c.cell, claims.c.boot_epoch, claims.c.claimed_at, claims.c.done_at)
    spans: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
    with engine.connect() as connection:
        for row in connection.execute(newest.where(overlaps, recent, claims.c.claimed_at < until)):
            spans[row.cell].append((row.boot_epoch, row.claimed_at, until if row.done_at is None else row.done_at))
    shares: dict[int, float] = {}
    for cell, found in spans.items():
        boot = max(epoch for epoch, _, _ in found)
        covered = union_seconds(((max(start, since), min(end, until)) for epoch, start, end in found if epoch == boot))
        shares[cell] = min(1.0, covered / max(until - since, 1e-9))
    return shares


def union_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds covered by at least one of the spans (start, end)."""
    total, edge = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > edge:
            total += end - max(start, edge)
            edge = end
    return total

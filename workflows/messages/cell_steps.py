"""Arguments and results of the steps that a cell worker runs for a role change. All are fenced by `lease`."""

from workflows.messages.base import Message
from workflows.messages.scheduling import Weights


class CellLease(Message):
    """A step of transition `lease` at cell `cell`; an older lease than the last one seen is refused."""

    run: str
    cell: int
    lease: int


class RetainKv(CellLease):
    """Pin the KV of these executions' latest prefixes, from before their requests are cancelled."""

    executions: tuple[str, ...]


class PullKv(CellLease):
    """At the destination `cell`: read what `source_cell` retains for these executions, verify, acknowledge."""

    source_cell: int
    executions: tuple[str, ...]


class KvPulled(Message):
    arrived: tuple[str, ...]
    tokens: int
    bytes: int


class LoadWeights(CellLease):
    """Bring the engine to this version: pull it into the actor, export to memory-backed storage, load, verify."""

    weights: Weights


class EngineVerified(Message):
    """What the engine itself reports after a load; equal to what was asked for, or the step failed.

    `bytes` of weights were loaded for it under this lease; 0: the engine held them already.
    """

    weights: Weights
    bytes: int = 0


class TakeCore(CellLease):
    """Become the core: restore what is committed, optimizer and generators too. `weights`: of it, or of an older one
    where the word of the newest commit is still on its way."""

    weights: Weights


class CoreTaken(Message):
    """What the cell holds as the core; its own account, compared with what is on record."""

    weights: Weights
    optimizer_steps: int


class RebootCell(CellLease):
    """End this boot of the cell, engine and actor with it: the next one begins with nothing of what is stuck."""

    reason: str = ""


class HandoffFigures(Message):
    """Asked of the proxy after a hand-off: what the continued requests found in the destination's cache."""

    lease: str
    engine: str

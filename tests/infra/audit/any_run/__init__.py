"""Faults for any recorded run, real ones too: each finds its subject in the records it is given."""

from tests.infra.audit.any_run import calls, schedule, scores, training
from tests.infra.audit.any_run.subjects import PLANTS

__all__ = ["PLANTS", "calls", "schedule", "scores", "training"]

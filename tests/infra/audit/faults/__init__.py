"""Faults to plant in the synthetic run, one or more for every code of the audit's catalogue."""

from tests.infra.audit.faults import endings, requests, scheduling, training, versions
from tests.infra.audit.planting import FAULTS, Fault

__all__ = ["FAULTS", "Fault", "endings", "requests", "scheduling", "training", "versions"]

"""Checks of the machine a stack is to run on. Each finding names the command that fixes it."""

from infra.doctor.findings import Finding, Verdict
from infra.doctor.machine import examine

__all__ = ["Finding", "Verdict", "examine"]

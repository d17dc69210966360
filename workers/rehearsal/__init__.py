"""A harness tried once, for real, on a tiny task: real proxy, real process, an engine that says what a script says.

For `gyre harness try` and for the tests that run every harness. Nothing here trains, and Temporal is not asked.
"""

from workers.rehearsal.parts import PARTS, Part, parts_of
from workers.rehearsal.rehearse import Rehearsal, Try
from workers.rehearsal.stage import Stage

__all__ = ["PARTS", "Part", "Rehearsal", "Stage", "Try", "parts_of"]

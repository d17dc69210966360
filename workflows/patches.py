"""Every change of what running workflows do: the patches, each listed once.

Runs outlive deploys. A workflow is replayed by the code of today, which must issue the commands (activities, timers,
child workflows, signals, search attributes) that its history has, in their order. Code that issues others
therefore asks, at the place of the change::

    if patches.CHECK_BEFORE_DRAIN.applies():
        await self._check()

A run of a workflow answers once, for good: no where it had passed that place before the deploy, yes where it comes to
it afterwards. A Scheduler, Cell or TrainingBatch that continues as new begins a new run, which always answers yes.

The life of a patch: listed here, with `applies` in the code and the old way beside it. Once no run from before can be
alive (docs/operations.md says how to see it), `expire` stands in the place of `applies` and the old way is removed.
Once no run that ever asked can be alive, the patch is removed here and there, and so are the saved histories of the
releases before it. An id is never used twice.
"""

from typing import NamedTuple

from temporalio import workflow


class Patch(NamedTuple):
    """One change. `id` is what histories and the web UI show."""

    id: str
    since: str
    """The first release whose workflows issue the new commands."""
    changed: str
    """What is done now and was not before, in a sentence."""

    def applies(self) -> bool:
        """Whether this run of the workflow does as the new code does. Not for queries and validators."""
        return workflow.patched(self.id)

    def expire(self) -> None:
        """In the place of `applies` when only the new way is left; runs that have answered yes replay."""
        workflow.deprecate_patch(self.id)


PATCHES: tuple[Patch, ...] = ()
"""All that the code asks for; a test compares. None so far: no release has been made whose runs could be alive."""

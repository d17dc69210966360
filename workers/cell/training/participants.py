"""The checks before gradients of several cells are combined."""

from collections.abc import Sequence

from workflows.messages.errors import Fenced
from workflows.messages.training import Accumulated, Participant


def check_participants(
    really: Sequence[Accumulated], accepted: Sequence[Accumulated], participants: Sequence[Participant], version: int
) -> None:
    """Raises Fenced unless the core's own set is the accepted one, no micro-step is claimed twice, and every gradient
    is of `version` and of the boot epoch that claimed."""
    if sorted(really, key=_index) != sorted(accepted, key=_index):
        raise Fenced("the core's accumulated set is not the one the batch accepted")
    seen: dict[int, int] = {entry.index: 0 for entry in accepted}
    if len(seen) != len(accepted):
        raise Fenced("the core's accepted set names a micro-step twice")
    for participant in participants:
        manifest = participant.manifest
        if (manifest.version, manifest.boot_epoch) != (version, participant.boot_epoch):
            raise Fenced(
                f"cell {participant.cell} offers a gradient of version {manifest.version}, boot {manifest.boot_epoch};"
                f" the batch has version {version}, boot {participant.boot_epoch}"
            )
        for entry in participant.accumulated:
            if entry.index in seen:
                raise Fenced(f"micro-step {entry.index} is claimed by cells {seen[entry.index]} and {participant.cell}")
            seen[entry.index] = participant.cell


def _index(entry: Accumulated) -> int:
    return entry.index

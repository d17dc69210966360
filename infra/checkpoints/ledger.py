"""The ledger that goes into a checkpoint, from what the batch asked to be combined."""

from workflows.messages.batch_ledger import BatchLedger, LedgerEntry
from workflows.messages.training import Combine


def ledger_of(request: Combine, core: int, version_before: int, norm: float, checksum: str) -> BatchLedger:
    """The books of the batch that `request` has cell `core` combine, with the gradient that came of it."""
    shares = [(core, request.boot_epoch, request.own)]
    shares += [(other.cell, other.boot_epoch, other.accumulated) for other in request.participants]
    entries = [
        LedgerEntry(micro_step=done.index, attempt=done.attempt, cell=cell, boot_epoch=boot_epoch)
        for cell, boot_epoch, share in shares
        for done in share
    ]
    return BatchLedger(
        batch=request.batch,
        version_before=version_before,
        groups=request.groups,
        micro_steps=tuple(sorted(entries, key=lambda entry: entry.micro_step)),
        valid_executions=request.valid_executions,
        gradient_norm=norm,
        gradient_checksum=checksum,
    )

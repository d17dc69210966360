"""The paced trainer: a double of the training actor that computes nothing and takes its time by tokens.

It speaks the actor's whole protocol with the same books, fences, snapshots, checkpoints and one-sided reads over a
small model, without torch, so that many cells fit one machine. For tests and scheduler benchmarks; results made with
it say so.
"""

from workers.cell.training.paced.actor import PacedActor

__all__ = ["PacedActor"]

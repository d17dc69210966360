"""Every fault the audit can find: its code, the invariant of DESIGN.md it breaks, and what is wrong in plain words."""

from typing import NamedTuple


class Fault(NamedTuple):
    """One row of the catalogue."""

    invariant: int
    meaning: str


CATALOGUE: dict[str, Fault] = {
    # 1: counts, groups, membership
    "counts-out-of-order": Fault(1, "0 <= finished <= launched <= dispatched does not hold"),
    "counter-went-back": Fault(1, "a counter of the run is lower than it was before"),
    "finished-exceeds-executions": Fault(1, "more executions were counted as finished than exist"),
    "execution-closed-twice": Fault(1, "more executions were counted as finished than had closed by then"),
    "group-incomplete": Fault(1, "a group was admitted without all of its executions, or before one had closed"),
    "execution-in-two-groups": Fault(1, "an execution is a member of two groups"),
    "sequence-repeated": Fault(1, "two groups have the same place in the order of admission"),
    "group-in-two-batches": Fault(1, "two committed batches consumed the same group"),
    "batch-names-unknown-group": Fault(1, "a batch names a group that was never admitted"),
    "group-batch-disagrees": Fault(1, "the group and the batch disagree about which batch consumed it"),
    "membership-out-of-order": Fault(1, "groups entered batches in another order than that of admission"),
    "membership-skips": Fault(1, "a group with signal was passed over by later ones"),
    # 2: role changes
    "move-over-capacity": Fault(2, "a cell left although w > C_R - C_e"),
    "waterlevel-below-running": Fault(2, "the waterlevel of a move is below the executions that were really running"),
    "capacity-counts-absent-cell": Fault(2, "the capacity of a move counts a cell that was not in rollout"),
    "move-over-bounds": Fault(2, "a cell left although the fleet's bounds forbid it"),
    "move-breaks-prefix": Fault(2, "a cell left before an eligible one of lower index"),
    "move-of-absent-cell": Fault(2, "the cell that was to leave was not serving rollout"),
    "transitions-overlap": Fault(2, "two cells were leaving rollout at the same time"),
    "transition-without-move": Fault(2, "a cell left rollout without a decision in the ledger"),
    "state-unreadable": Fault(2, "a move in the ledger carries no policy state"),
    # 3: requests across engines
    "segment-sum": Fault(3, "the segments' output tokens do not add up to the call's"),
    "segment-prompt": Fault(3, "a segment was not sent the prompt plus what earlier segments produced"),
    "segment-after-end": Fault(3, "a segment follows one that had ended the call"),
    "rid-repeated": Fault(3, "two segments used the same request id"),
    "rid-length": Fault(3, "request ids are not all of one length, so one may be another's prefix"),
    "budget-exceeded": Fault(3, "a call produced more tokens than its budget"),
    # 4: recorded tokens
    "tokens-misaligned": Fault(4, "ids, log-probs, version spans and count of a call's output differ in length"),
    "logprob-invalid": Fault(4, "a behaviour log-prob is not finite or is positive"),
    "parent-missing": Fault(4, "a call shares its prefix with a call that is not there, or that came later"),
    "shared-too-long": Fault(4, "a call shares more tokens than its parent has"),
    "prompt-length": Fault(4, "the shared ids and the tail do not give the prompt's length"),
    # 5: targets and the gradient
    "accepted-unknown": Fault(5, "a batch accepted a micro-step that was never packed"),
    "micro-step-accepted-twice": Fault(5, "a batch counted a micro-step twice"),
    "micro-step-not-accepted": Fault(5, "a committed batch left out one of its micro-steps"),
    "claim-missing": Fault(5, "what a batch accepted was never claimed by that cell, attempt and boot epoch"),
    "claim-unfinished": Fault(5, "what a batch accepted was not done before the commit"),
    "boot-missing": Fault(5, "what a batch accepted came from a boot epoch the cell never had"),
    "micro-step-of-other-group": Fault(5, "a micro-step belongs to a group that is not in its batch"),
    "payload-missing": Fault(5, "the payload of a micro-step is gone or is no micro-step"),
    "payload-altered": Fault(5, "the payload of a micro-step is not the one that was packed"),
    "payload-mislabelled": Fault(5, "the payload's header or sizes disagree with the record"),
    "positions-differ": Fault(5, "rotary positions do not count from 0 in every path"),
    "target-unknown-call": Fault(5, "a target comes from a call its execution never made"),
    "target-trained-twice": Fault(5, "the same token after the same prefix was trained twice"),
    "target-lost": Fault(5, "a token that was generated on a trained path was not trained"),
    "target-ids-differ": Fault(5, "the ids up to a target are not those the model saw and sampled"),
    "target-logprob-differs": Fault(5, "a target's behaviour log-prob is not the recorded one"),
    "target-mask-differs": Fault(5, "the target mask is not what the paths' spans say"),
    "target-count-differs": Fault(5, "an execution was trained on more or fewer targets than |T_i|"),
    "weight-differs": Fault(5, "a target's weight is not A_i / |T_i|"),
    "advantage-differs": Fault(5, "a member's advantage is not that of its group's valid rewards"),
    "signal-differs": Fault(5, "a group is marked with or without signal against its rewards"),
    "normalizer-differs": Fault(5, "V is not the number of valid executions of groups with signal"),
    # 6: weight versions of training
    "claim-version": Fault(6, "an accepted gradient was computed at another version than the batch's"),
    "target-version-differs": Fault(6, "a target's weight version is not the recorded one"),
    "target-from-the-future": Fault(6, "a target was sampled by a version newer than the batch's"),
    "update-gap": Fault(6, "versions of updates are not consecutive"),
    "update-missing": Fault(6, "a committed batch with targets has no update, or not to the next version"),
    "update-repeated": Fault(6, "a batch made more than one update"),
    "update-without-targets": Fault(6, "a batch without targets made an update"),
    "version-went-back": Fault(6, "a batch starts at another version than the one before it left"),
    "core-gap": Fault(6, "hand-overs of the core are not numbered one after the other"),
    "core-version": Fault(6, "the core was handed over at weights that no update made, or at older ones than before"),
    "checksum-repeated": Fault(6, "two versions have the same weights checksum"),
    "checksum-differs": Fault(6, "a version of weights is named with another checksum than its update made"),
    "consumed-version": Fault(6, "a group's consumed version is not its batch's version before the update"),
    "staleness-negative": Fault(6, "something was dispatched at a newer version than it was used at"),
    # 7: weight versions of rollout
    "request-went-back": Fault(7, "a request went on at an older version"),
    "unpublished-version": Fault(7, "an engine served a version that was not committed, or never published"),
    "mixed-kv-unexplained": Fault(7, "KV of older weights was used, but no publish kept it at that engine then"),
    "stale-engine": Fault(7, "an engine started a request at an older version than the published one"),
    "served-while-away": Fault(7, "an engine started a request while its cell was in training"),
    "segment-boot-missing": Fault(7, "an engine served in a boot epoch its cell never had"),
    "token-version-differs": Fault(7, "tokens are labelled with another version than the engine that made them"),
    # 8: scores
    "failure-rewarded": Fault(8, "an execution that was not scored has a reward"),
    "reward-invalid": Fault(8, "a scored execution has no finite reward between 0 and 1"),
    "reward-disagrees": Fault(8, "the group's copy of an outcome or reward is not the execution's"),
    "valid-count-differs": Fault(8, "a group's count of valid executions is wrong"),
    "invalid-execution-trained": Fault(8, "an execution without a valid score, or left out, was trained"),
    # 9: nothing lost
    "execution-not-closed": Fault(9, "the run is at rest, but an execution is still open"),
    "execution-lost": Fault(9, "the run is at rest, but fewer executions have closed than were dispatched"),
}

VERSION_CODES = frozenset(
    {
        "claim-version",
        "target-version-differs",
        "target-from-the-future",
        "request-went-back",
        "unpublished-version",
        "stale-engine",
        "token-version-differs",
    }
)
"""What counts as a version mismatch in the figures."""

"""What a paced engine says in a comparison: answers of exactly the length that the last message asks for."""

import re

from workers.bench.schedulers.harness import FILLER
from workers.cell.rollout.paced.script import Conversation

_ASKED = re.compile(r"say (\d+)")


def reply(asked: Conversation) -> str | None:
    """Text of one token less than asked: the end of turn is one. None for any other message."""
    found = _ASKED.match(asked.last)
    return FILLER * (int(found[1]) - 1) if found else None

"""What one measurement consists of."""

import os
from dataclasses import dataclass

from workflows.messages.errors import InvalidInput

PROMPT_UNIT = "Look at the failing test, read the module it names, change as little as you can and run it again. "


@dataclass(frozen=True)
class BenchPlan:
    """`streams` at once, each `output_tokens` long at `tokens_per_second`; `rounds` of each contestant in turn.

    `pairs`: requests one at a time, direct and through each contestant in turn, for the time to the first token.
    """

    streams: int = 64
    output_tokens: int = 256
    tokens_per_second: float = 40.0
    rounds: int = 3
    pairs: int = 200
    engines: int = 2
    prompt_characters: int = 1300
    contestants: tuple[str, ...] = ("gyre", "litellm", "sglang-router")

    def body(self, name: str, tokens: int) -> dict[str, object]:
        """A request whose text no other request has: `name` stands in it."""
        repeated = PROMPT_UNIT * (self.prompt_characters // len(PROMPT_UNIT))
        return {
            "model": "policy",
            "messages": [
                {"role": "system", "content": f"You repair software. This is conversation {name}."},
                {"role": "user", "content": repeated},
            ],
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@dataclass(frozen=True)
class Cores:
    """`contestant`: the core of what is measured; `rest`: that of engines and load."""

    contestant: int
    rest: int

    @classmethod
    def of_this_machine(cls) -> "Cores":
        """Raises InvalidInput where fewer than two cores may be used: the load would be measured too."""
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) < 2:
            raise InvalidInput("two cores are needed, one for the proxy and one for its load", field="cores")
        return cls(contestant=allowed[-1], rest=allowed[0])

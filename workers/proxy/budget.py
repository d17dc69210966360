"""How many tokens one call may produce.

The burst's `max_call_tokens` is imposed; a smaller request wins. What is imposed never makes a request fail: it is cut
to the context that is left. What a harness asks for itself, and would get, must fit, or it is told so in the very words
that make it compact its history.
"""

from workflows.messages.errors import ContextOverflow


def output_budget(prompt_tokens: int, asked: int | None, imposed: int, context: int) -> int:
    """Output tokens of a call, at least 1. Raises ContextOverflow, with `budget` 0 if the prompt alone is too long."""
    left = context - prompt_tokens
    wanted = min(asked, imposed) if asked is not None else None
    if wanted is not None and prompt_tokens <= context and wanted > left:
        raise ContextOverflow(prompt_tokens, wanted, context)
    if left < 1:
        raise ContextOverflow(prompt_tokens, 0, context)
    return wanted if wanted is not None else min(imposed, left)

"""The chat template, run in a sandbox with the helpers that published templates expect."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from workflows.messages.errors import InvalidRequest


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, variables: dict[str, Any]) -> None:
        """`variables` are the tokenizer's named tokens (`bos_token`, ...), which templates may print."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        self._template = environment.from_string(source)
        self._variables = variables

    def render(
        self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool, tools: list[Any] | None = None
    ) -> str:
        """The conversation as text. Raises InvalidRequest if the template refuses it."""
        try:
            return self._template.render(
                messages=list(messages), tools=tools, add_generation_prompt=add_generation_prompt, **self._variables
            )
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise InvalidRequest(f"the chat template refuses this conversation: {error}", field="messages") from error


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    # Not jinja's own filter: that one escapes HTML characters, which a model was never trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)

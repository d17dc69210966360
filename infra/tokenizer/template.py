"""The chat template, run in a sandbox with the helpers that published templates expect."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from workflows.messages.errors import InvalidRequest


class GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks what a model writes; here it is only its contents."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template. `read_clock`: whether a rendering so far has asked for the time."""

    def __init__(self, source: str, variables: dict[str, Any]) -> None:
        """`variables` are the tokenizer's named tokens (`bos_token`, ...), which templates may print."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        self._template = environment.from_string(source)
        self._variables = variables
        self.read_clock = False

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: list[Any] | None = None,
        clock: float | None = None,
    ) -> str:
        """The conversation as text. `clock`: what the template is told the time is, seconds since the epoch; None is
        now. Raises InvalidRequest if the template refuses it."""

        def strftime_now(pattern: str) -> str:
            self.read_clock = True
            return (datetime.now() if clock is None else datetime.fromtimestamp(clock)).strftime(pattern)

        try:
            return self._template.render(
                messages=list(messages),
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                strftime_now=strftime_now,
                **self._variables,
            )
        except (
            TemplateError, TypeError, LookupError, ValueError, ArithmeticError, AttributeError, RecursionError
        ) as error:  # fmt: skip
            raise InvalidRequest(f"the chat template refuses this conversation: {error}", field="messages") from error


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not jinja's own filter: that one escapes HTML characters, which a model was never trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

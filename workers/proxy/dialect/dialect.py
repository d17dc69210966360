"""What the proxy asks of a wire format."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness_adapters.protocol import CallRole
from workers.proxy.answer import Event
from workers.proxy.call import CallError, LiveCall, ModelRequest
from workers.proxy.dialect import (
    chat,
    chat_reply,
    messages,
    messages_reply,
    responses,
    responses_items,
    responses_reply,
)
from workers.proxy.dialect.logprobs import Logprobs
from workflows.messages.errors import InvalidRequest


class Writer(Protocol):
    """Writes one streamed reply, as server-sent events ready for the wire."""

    @property
    def keep_alive(self) -> bytes:
        """What fills a silence so that a client of this dialect stays."""
        ...

    def first(self) -> bytes: ...

    def more(self, events: Sequence[Event]) -> bytes:
        """Everything that is ready now, as one write; may be empty."""
        ...

    def last(self) -> bytes:
        """The end of a finished call."""
        ...

    def broken(self, error: CallError) -> bytes:
        """The end of a call that failed after its headers were sent: never looks like a finish."""
        ...


class Parse(Protocol):
    def __call__(self, raw: Any, headers: Mapping[str, str], role: CallRole = CallRole.MAIN) -> ModelRequest: ...


@dataclass(frozen=True)
class Dialect:
    """`parse` raises InvalidRequest, which `refusal` words (status, body). `refused_stream` is the body of a stream
    that says what a status would, where this dialect's clients expect that; else None. `load` imports the types."""

    name: str
    parse: Parse
    stream: Callable[[LiveCall, ModelRequest, str, Logprobs], Writer]
    whole: Callable[[LiveCall, ModelRequest, str, Logprobs], dict[str, Any]]
    error_body: Callable[[CallError], dict[str, Any]]
    refusal: Callable[[InvalidRequest], tuple[int, dict[str, Any]]]
    refused_stream: Callable[[InvalidRequest, str], bytes | None]
    load: Callable[[], None]


def _no_stream(error: InvalidRequest, model: str) -> bytes | None:
    return None


def _all(*steps: Callable[[], object]) -> Callable[[], None]:
    def load() -> None:
        for step in steps:
            step()

    return load


DIALECTS = {
    chat.NAME: Dialect(
        chat.NAME,
        chat.parse,
        chat_reply.ChatStream,
        chat_reply.whole,
        chat_reply.error_body,
        chat_reply.refusal,
        _no_stream,
        _all(chat.CHECKED.load, chat_reply.load),
    ),
    responses.NAME: Dialect(
        responses.NAME,
        responses.parse,
        responses_reply.ResponsesStream,
        responses_items.whole,
        chat_reply.error_body,
        responses_reply.refusal,
        responses_reply.refused_stream,
        _all(responses.CHECKED.load, responses_items.load),
    ),
    messages.NAME: Dialect(
        messages.NAME,
        messages.parse,
        lambda call, request, model, logprobs: messages_reply.MessagesStream(call, request, model),
        lambda call, request, model, logprobs: messages_reply.whole(call, request, model),
        messages_reply.error_body,
        messages_reply.refusal,
        _no_stream,
        _all(messages.CHECKED.load, messages_reply.load),
    ),
}

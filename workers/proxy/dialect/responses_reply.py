"""OpenAI responses: answers and errors, built from the openai package's models.

Every event has the next sequence number. Silence is filled with real events (`response.in_progress`): clients of this
dialect do not count comments as life.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from workers.proxy.answer import Event, Kind, merged
from workers.proxy.call import CallError, LiveCall, ModelRequest
from workers.proxy.dialect import chat_reply, wire
from workers.proxy.dialect.logprobs import Logprobs
from workers.proxy.dialect.responses_items import Items, framed, response_of, status_of, text_part
from workflows.messages.errors import ContextOverflow, InvalidRequest

OVERFLOW = "Your input exceeds the context window of this model. Please adjust your input and try again."
_HOLE, _NUMBER = "\x00", 99999999


class ResponsesStream:
    """Writes one streamed reply."""

    def __init__(self, call: LiveCall, request: ModelRequest, model: str, logprobs: Logprobs) -> None:
        self._call, self._request, self._model, self._logprobs = call, request, model, logprobs
        self._items = Items(call, request)
        self._number = 0
        self._open: Kind | None = None
        self._item = self._name = ""
        self._index, self._told_text = 0, 0
        self._parts: list[str] = []
        self._frame: tuple[bytes, bytes, bytes] = (b"", b"", b"")

    @property
    def keep_alive(self) -> bytes:
        return self._state("ResponseInProgressEvent", "response.in_progress", "in_progress")

    def first(self) -> bytes:
        return self._state("ResponseCreatedEvent", "response.created", "in_progress") + self.keep_alive

    def more(self, events: Sequence[Event]) -> bytes:
        if len(events) > 1:
            return b"".join(map(self._tell, merged(events)))
        return self._tell(events[0]) if events else b""

    def last(self) -> bytes:
        closed = self._close(complete=self._call.finish != "length")
        status = status_of(self._call)
        name = "ResponseIncompleteEvent" if status == "incomplete" else "ResponseCompletedEvent"
        return closed + self._state(name, f"response.{status}", status)

    def broken(self, error: CallError) -> bytes:
        """An answer that broke off: never completed."""
        response = response_of(self._call, self._request, self._model, "failed", self._items.done)
        response["error"] = {"code": "server_error", "message": error.message}
        return self._event("ResponseFailedEvent", {"type": "response.failed", "response": response})

    def _tell(self, event: Event) -> bytes:
        if event.kind in (Kind.TEXT, Kind.REASONING):
            opening = b"" if self._open is event.kind else self._close() + self._begin(event.kind)
            return opening + self._delta(event.text)
        if event.kind is Kind.CALL:
            return self._close() + self._begin_call(event)
        if event.kind is Kind.ARGUMENTS:
            if self._items.is_custom(self._name):
                self._parts.append(event.text)
                return b""
            return self._delta(event.text)
        return self._close()

    def _begin(self, kind: Kind) -> bytes:
        self._opened(kind)
        place = {"item_id": self._item, "output_index": len(self._items.done), "content_index": 0}
        if kind is Kind.TEXT:
            item, part = self._items.message(self._item, None, "in_progress"), text_part("", [])
            delta = {"type": "response.output_text.delta", **place, "delta": _HOLE, "logprobs": []}
            self._framed("ResponseTextDeltaEvent", delta)
        else:
            item = self._items.reasoning(self._item, None, "in_progress")
            part = {"type": "reasoning_text", "text": ""}
            self._framed(
                "ResponseReasoningTextDeltaEvent", {"type": "response.reasoning_text.delta", **place, "delta": _HOLE}
            )
        added = {"type": "response.content_part.added", **place, "part": part}
        return self._item_event("added", item) + self._event("ResponseContentPartAddedEvent", added)

    def _begin_call(self, event: Event) -> bytes:
        self._opened(Kind.CALL)
        self._name, self._index = event.text, event.index
        place = {"item_id": self._item, "output_index": len(self._items.done)}
        delta = {"type": "response.function_call_arguments.delta", **place, "delta": _HOLE}
        self._framed("ResponseFunctionCallArgumentsDeltaEvent", delta)
        return self._item_event("added", self._items.function(self._item, event.index, event.text, "", "in_progress"))

    def _opened(self, kind: Kind) -> None:
        self._open, self._item, self._parts, self._name = kind, self._items.item_id(kind), [], ""

    def _close(self, *, complete: bool = True) -> bytes:
        """End the open item, if there is one."""
        kind, self._open = self._open, None
        if kind is None:
            return b""
        status, text = "completed" if complete else "incomplete", "".join(self._parts)
        place = {"item_id": self._item, "output_index": len(self._items.done)}
        if kind is Kind.CALL:
            item = self._items.function(self._item, self._index, self._name, text, status)
            ending = self._call_done(place, item)
        else:
            ending, item = self._text_done(kind, {**place, "content_index": 0}, text, status)
        data = ending + self._item_event("done", item)
        self._items.done.append(item)
        return data

    def _text_done(self, kind: Kind, place: dict[str, Any], text: str, status: str) -> tuple[bytes, dict[str, Any]]:
        if kind is Kind.TEXT:
            entries = self._text_logprobs()
            part, item_part = text_part(text, entries), text_part(text, entries)
            item = self._items.message(self._item, item_part, status)
            brief = [{"token": e["token"], "logprob": e["logprob"], "top_logprobs": []} for e in entries]
            done = {"type": "response.output_text.done", **place, "text": text, "logprobs": brief}
            data = self._event("ResponseTextDoneEvent", done)
        else:
            part = {"type": "reasoning_text", "text": text}
            item = self._items.reasoning(self._item, text, status)
            data = self._event(
                "ResponseReasoningTextDoneEvent", {"type": "response.reasoning_text.done", **place, "text": text}
            )
        ended = {"type": "response.content_part.done", **place, "part": part}
        return data + self._event("ResponseContentPartDoneEvent", ended), item

    def _call_done(self, place: dict[str, Any], item: dict[str, Any]) -> bytes:
        if item["type"] == "function_call":
            done = {
                "type": "response.function_call_arguments.done",
                **place,
                "arguments": item["arguments"],
                "name": item["name"],
            }
            return self._event("ResponseFunctionCallArgumentsDoneEvent", done)
        delta = {"type": "response.custom_tool_call_input.delta", **place, "delta": item["input"]}
        done = {"type": "response.custom_tool_call_input.done", **place, "input": item["input"]}
        return self._event("ResponseCustomToolCallInputDeltaEvent", delta) + self._event(
            "ResponseCustomToolCallInputDoneEvent", done
        )

    def _text_logprobs(self) -> list[dict[str, Any]]:
        """Entries of the tokens of this text."""
        if not self._request.logprobs:
            return []
        positions = self._call.answer.text_positions[self._told_text :]
        self._told_text += len(positions)
        return self._logprobs.of(self._call, positions)

    def _framed(self, name: str, value: dict[str, Any]) -> None:
        """Build an event once around its text and its number."""
        data = framed(name, {**value, "sequence_number": _NUMBER})
        before, rest = wire.split_at(data, _HOLE)
        number = str(_NUMBER).encode()
        if number in before:
            head, tail = before.split(number)
            self._frame = (head, tail, rest)
        else:
            middle, tail = rest.split(number)
            self._frame = (before, middle, tail)
        self._number_first = number in before

    def _delta(self, text: str) -> bytes:
        self._parts.append(text)
        number, body = str(self._number).encode(), wire.text_json(text)
        self._number += 1
        head, middle, tail = self._frame
        first, second = (number, body) if self._number_first else (body, number)
        return b"".join((head, first, middle, second, tail))

    def _item_event(self, what: str, item: Mapping[str, Any]) -> bytes:
        name = "ResponseOutputItemAddedEvent" if what == "added" else "ResponseOutputItemDoneEvent"
        value = {"type": f"response.output_item.{what}", "output_index": len(self._items.done), "item": item}
        return self._event(name, value)

    def _state(self, name: str, kind: str, status: str) -> bytes:
        response = response_of(self._call, self._request, self._model, status, self._items.done)
        return self._event(name, {"type": kind, "response": response})

    def _event(self, name: str, value: Mapping[str, Any]) -> bytes:
        data = framed(name, {**value, "sequence_number": self._number})
        self._number += 1
        return data


def refusal(error: InvalidRequest) -> tuple[int, dict[str, Any]]:
    """Status and body for a request that is refused."""
    if isinstance(error, ContextOverflow):
        inner = {
            "message": OVERFLOW,
            "type": "invalid_request_error",
            "param": "input",
            "code": "context_length_exceeded",
        }
        return 400, {"error": inner}
    return chat_reply.refusal(error)


def refused_stream(error: InvalidRequest, model: str) -> bytes | None:
    """What the real API streams instead of a refusal; None where it refuses with a status.

    Its clients compact their history only when an overflow reaches them as a failed response.
    """
    if not isinstance(error, ContextOverflow):
        return None
    inner = {"code": "context_length_exceeded", "message": OVERFLOW}
    response = {"id": "resp_refused", "object": "response", "created_at": 0, "status": "failed", "error": inner,
                "incomplete_details": None, "model": model, "output": [], "usage": None, "metadata": {}}  # fmt: skip
    data = {"type": "response.failed", "sequence_number": 0, "response": response}
    return b"event: response.failed\ndata: " + wire.dumps(data) + b"\n\n"

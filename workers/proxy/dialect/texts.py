"""Parts of a message's content, as any dialect writes them, to text."""

from collections.abc import Mapping
from typing import Any

from workers.proxy.dialect.wire import IMAGE_NOTE
from workflows.messages.errors import InvalidRequest

_TEXT = frozenset({"text", "input_text", "output_text"})
_IMAGE = frozenset({"image", "image_url", "input_image"})


def parts_of(content: Any, field: str) -> Any:
    """Content that `infra.tokenizer.canonical` takes: a string, None or a list of text parts.

    An image becomes a note: a harness cannot take it out of its history again, so a refusal would end the run. What
    only its maker reads (`cache_control`) is left out. Raises InvalidRequest for a part of any other kind.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest("expected text or a list of parts", field=field)
    return [{"type": "text", "text": text_of(part, f"{field}.{i}")} for i, part in enumerate(content)]


def text_of(part: Any, field: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and kind in _TEXT and isinstance(part.get("text"), str):
        return part["text"]
    if isinstance(part, Mapping) and kind == "refusal" and isinstance(part.get("refusal"), str):
        return part["refusal"]
    if kind in _IMAGE:
        return IMAGE_NOTE
    raise InvalidRequest(f"parts of type {kind!r} are not supported", field=field)


def joined(content: Any, field: str, separator: str = "") -> str:
    """Content as one string."""
    parts = parts_of(content, field)
    return parts if isinstance(parts, str) else separator.join(part["text"] for part in parts or [])

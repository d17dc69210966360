"""Chat messages to exact token ids and back.

Invariants: control ids come only from the template (field case 5); ids of earlier turns are never re-encoded, only
appended to (cases 1 and 2); equal messages give equal ids (case 6). It knows no HTTP dialect and no engine.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from infra.tokenizer.control import ControlTokens, strings_in
from infra.tokenizer.conversation import canonical
from infra.tokenizer.detokenizer import ByteVocabulary, Detokenizer
from infra.tokenizer.template import ChatTemplate
from workflows.messages.errors import InvalidSpec

Messages = Sequence[Mapping[str, Any]]


class ChatTokenizer:
    """Tokenizer and chat template of a model folder: `tokenizer.json`, `tokenizer_config.json` (and, if there,
    `chat_template.jinja`, `config.json`, `generation_config.json`).

    Raises InvalidSpec if a file is missing or the tokenizer is not a byte-level one.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        spec = _json(self.folder / "tokenizer.json")
        settings = _json(self.folder / "tokenizer_config.json")
        model = _json(self.folder / "config.json", missing={})
        generation = _json(self.folder / "generation_config.json", missing={})
        if not _is_byte_level(spec.get("decoder")):
            raise InvalidSpec("only byte-level tokenizers are supported", field="tokenizer.json.decoder")
        added = spec.get("added_tokens") or []
        special = {token["content"]: token["id"] for token in added if token.get("special")}
        other = {token["content"]: token["id"] for token in added if not token.get("special")}
        self._control = ControlTokens(special, other)
        # The same tokenizer without added tokens: whatever it encodes is ordinary text.
        self._ordinary = Tokenizer.from_str(json.dumps({**spec, "added_tokens": [], "post_processor": None}))
        vocabulary = Tokenizer.from_str(json.dumps(spec)).get_vocab(with_added_tokens=True)
        self._bytes = ByteVocabulary(vocabulary, frozenset(special.values()), frozenset(other.values()))
        self._template = ChatTemplate(_template_source(self.folder, settings), _named_tokens(settings))
        self.vocab_size = max(vocabulary.values()) + 1
        """Ids at or above this one mean nothing to the tokenizer, even if the model's embedding is padded."""
        limits = (model.get("max_position_embeddings"), settings.get("model_max_length"))
        known = [int(limit) for limit in limits if limit and limit < 1e9]
        self.max_context = min(known) if known else 0
        """Tokens of prompt plus answer; 0 if the folder does not say."""
        self.end_of_turn_ids = self._find_end_of_turn(settings, model, generation)
        """Ids that end an answer, ascending: what to give an engine as `stop_token_ids`."""

    def render(
        self, messages: Messages, add_generation_prompt: bool = True, *, tools: list[Any] | None = None
    ) -> list[int]:
        """Ids of a whole conversation. Raises InvalidRequest for one that the template or we cannot represent."""
        prepared = [canonical(message, field=f"messages.{i}") for i, message in enumerate(messages)]
        guard = self._control.guard_for(strings_in([prepared, tools]))
        return self._encode(self._text(prepared, guard, tools, add_generation_prompt), guard)

    def extend(
        self,
        previous_ids: Sequence[int],
        previous_messages: Messages,
        new_messages: Messages,
        add_generation_prompt: bool = True,
        *,
        tools: list[Any] | None = None,
    ) -> list[int] | None:
        """Ids of `previous_messages + new_messages` that begin with exactly `previous_ids`.

        `previous_ids` are the prompt of an earlier call followed by the ids it sampled; `previous_messages` are the
        messages of that call followed by its answer. The end of the answer and the template's glue behind it are
        added exactly as far as `previous_ids` lacks them, so a turn cut by length gets its missing end token.
        None if the template writes the earlier turns differently once the new ones follow: then it is a fork.
        """
        messages = [*previous_messages, *new_messages]
        prepared = [canonical(message, field=f"messages.{i}") for i, message in enumerate(messages)]
        guard = self._control.guard_for(strings_in([prepared, tools]))
        earlier = self._text(prepared[: len(previous_messages)], guard, tools, False)
        whole = self._text(prepared, guard, tools, add_generation_prompt)
        if not previous_messages or not whole.startswith(earlier):
            return None
        closing = _from_last_of(self._control.split(earlier, guard), set(self.end_of_turn_ids))
        if closing is None:
            return None
        # Encoded together, because glue and new text may belong to one stretch of ordinary text.
        glue_length = len(self._encode_pieces(closing))
        tail = self._encode_pieces(_joined(closing, self._control.split(whole[len(earlier) :], guard)))
        present = _overlap(previous_ids, tail, glue_length)
        if not present and prepared[len(previous_messages) - 1]["role"] != "assistant":
            return None  # only an answer may lack its end: these ids are not the ones of these messages
        return [*previous_ids, *tail[present:]]

    def encode_text(self, text: str) -> list[int]:
        """Ids of ordinary text; a control marker in it is spelled out, never a control id."""
        return self._ordinary.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids, control tokens left out, U+FFFD for invalid bytes."""
        decoder = self.decode_stream()
        return decoder.push(ids) + decoder.flush()

    def decode_stream(self) -> Detokenizer:
        """A fresh incremental decoder for one answer."""
        return Detokenizer(self._bytes)

    def _text(self, messages: list[dict[str, Any]], guard: str, tools: list[Any] | None, prompt: bool) -> str:
        protected = [
            self._control.protect(message, guard, sampled=message["role"] == "assistant") for message in messages
        ]
        protected_tools = self._control.protect(tools, guard, sampled=False)
        return self._template.render(protected, add_generation_prompt=prompt, tools=protected_tools)

    def _encode(self, rendered: str, guard: str) -> list[int]:
        return self._encode_pieces(self._control.split(rendered, guard))

    def _encode_pieces(self, pieces: Iterable[int | str]) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            ids.extend([piece] if isinstance(piece, int) else self.encode_text(piece))
        return ids

    def _find_end_of_turn(self, *settings: Mapping[str, Any]) -> tuple[int, ...]:
        """Ends that the folder declares, and the marker that the template writes behind an assistant's text."""
        found: set[int] = set()
        for source in settings:
            declared = source.get("eos_token_id")
            found.update(declared if isinstance(declared, list) else [] if declared is None else [declared])
            name = source.get("eos_token")
            text = name.get("content") if isinstance(name, Mapping) else name
            if text in self._control.ids:
                found.add(self._control.ids[text])
        probe = "answer"
        guard = self._control.guard_for([probe])
        turns = [{"role": "user", "content": probe}, {"role": "assistant", "content": probe}]
        for piece in reversed(self._control.split(self._text(turns, guard, None, False), guard)):
            if isinstance(piece, int):
                found.add(piece)
                break
        return tuple(sorted(found))


def _overlap(previous: Sequence[int], tail: Sequence[int], at_most: int) -> int:
    """How many leading ids of `tail` already stand at the end of `previous`."""
    for length in range(min(at_most, len(previous)), 0, -1):
        if list(previous[-length:]) == list(tail[:length]):
            return length
    return 0


def _from_last_of(pieces: Sequence[int | str], ends: set[int]) -> list[int | str] | None:
    for index in range(len(pieces) - 1, -1, -1):
        if pieces[index] in ends:
            return list(pieces[index:])
    return None


def _joined(first: list[int | str], second: list[int | str]) -> list[int | str]:
    if first and second and isinstance(first[-1], str) and isinstance(second[0], str):
        return [*first[:-1], first[-1] + second[0], *second[1:]]
    return [*first, *second]


def _json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    if not path.is_file():
        if missing is None:
            raise InvalidSpec(f"{path} is missing", field=path.name)
        return missing
    return json.loads(path.read_text(encoding="utf-8"))


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, Mapping):
        return False
    return decoder.get("type") == "ByteLevel" or any(_is_byte_level(item) for item in decoder.get("decoders") or [])


def _template_source(folder: Path, settings: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        template = next((item["template"] for item in template if item.get("name") == "default"), None)
    if not isinstance(template, str):
        raise InvalidSpec("no chat template", field="tokenizer_config.json.chat_template")
    return template


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(name)
        named[name] = value.get("content") if isinstance(value, Mapping) else value
    return named

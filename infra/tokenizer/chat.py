"""Chat messages to exact token ids and back.

Invariants: control ids come only from the template (field case 5); ids of earlier turns are never re-encoded, only
appended to (cases 1 and 2), at the cost of what is new; equal messages give equal ids (case 6). It knows no HTTP
dialect and no engine.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from infra.tokenizer.analysis import TemplateAnalysis, analyse
from infra.tokenizer.control import ControlTokens, strings_in
from infra.tokenizer.conversation import canonical
from infra.tokenizer.detokenizer import ByteVocabulary, Detokenizer
from infra.tokenizer.folder import read_folder
from infra.tokenizer.increment import Beginning, Forms, Increments, Setting
from infra.tokenizer.outline import Kind, kind_of, outline_of
from infra.tokenizer.reading import TemplateReading, reading_of
from infra.tokenizer.template import ChatTemplate
from workflows.messages.errors import InvalidRequest

log = logging.getLogger(__name__)
Messages = Sequence[Mapping[str, Any]]
_THINK = ("<think>", "</think>")


class ChatTokenizer:
    """Tokenizer and chat template of a model folder (`infra.tokenizer.folder` has the files).

    Raises InvalidSpec if a file is missing or the tokenizer is not a byte-level one.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        files = read_folder(self.folder)
        special = {token["content"]: token["id"] for token in files.added if token.get("special")}
        other = {token["content"]: token["id"] for token in files.added if not token.get("special")}
        self._control = ControlTokens(special, other)
        # The same tokenizer without added tokens: whatever it encodes is ordinary text.
        self._ordinary = Tokenizer.from_str(json.dumps({**files.spec, "added_tokens": [], "post_processor": None}))
        vocabulary = Tokenizer.from_str(json.dumps(files.spec)).get_vocab(with_added_tokens=True)
        self._bytes = ByteVocabulary(vocabulary, frozenset(special.values()), frozenset(other.values()))
        self.template_source = files.template
        self._template = ChatTemplate(self.template_source, files.named_tokens)
        self.control_ids: Mapping[str, int] = self._control.ids
        """Ids of the added tokens by their text."""
        self.special_texts = frozenset(special)
        """Added tokens that `decode` leaves out."""
        self._spelled = {token: text for text, token in special.items()}
        self.vocab_size = max(vocabulary.values()) + 1
        """Ids at or above this one mean nothing to the tokenizer, even if the model's embedding is padded."""
        self.max_context = files.max_context
        """Tokens of prompt plus answer; 0 if the folder does not say."""
        self.reading: TemplateReading = reading_of(self._probe)
        """What the template shows, and how."""
        self._increments = Increments(self._text, self._control.split, shows_tools=self.reading.tools)
        self._increments.parallel = self.reading.parallel
        self.end_of_turn_ids = self._find_end_of_turn(files.declared_ends(self._control.ids))
        """Ids that end an answer, ascending: what to give an engine as `stop_token_ids`."""
        self._increments.ends = frozenset(self.end_of_turn_ids)
        self.analysis: TemplateAnalysis = analyse(self._increments, self._refused, lambda: self._template.read_clock)
        """Whether conversations can be encoded by what is new in them."""
        self._increments.whole = not self.analysis.incremental
        log.log(
            logging.INFO if self.analysis.incremental else logging.WARNING,
            "chat template of %s: %s",
            self.folder.name,
            self.analysis,
        )

    def render(
        self,
        messages: Messages,
        add_generation_prompt: bool = True,
        *,
        tools: list[Any] | None = None,
        clock: float | None = None,
    ) -> list[int]:
        """Ids of a whole conversation. `clock`: the time a template is told, seconds since the epoch, None for now.

        Raises InvalidRequest for a conversation that the template or we cannot represent.
        """
        forms = [canonical(message, field=f"messages.{i}") for i, message in enumerate(messages)]
        return self.render_forms(forms, Setting(tools, clock), add_generation_prompt)

    def render_forms(self, forms: Forms, setting: Setting, add_generation_prompt: bool = True) -> list[int]:
        """As `render`, of messages in canonical form."""
        guard = self._control.guard_for(strings_in([list(forms), setting.tools]))
        text = self._text(forms, guard, setting.tools, add_generation_prompt, setting.clock)
        return self._encode(self._control.split(text, guard))

    def extend(
        self,
        previous_ids: Sequence[int],
        previous_messages: Messages,
        new_messages: Messages,
        *,
        tools: list[Any] | None = None,
        clock: float | None = None,
    ) -> list[int] | None:
        """Ids of `previous_messages + new_messages` that begin with exactly `previous_ids`.

        `previous_ids` are the prompt of an earlier call followed by the ids it sampled; `previous_messages` are the
        messages of that call followed by its answer. None if the template writes the earlier turns differently once
        the new ones follow: then it is a fork.
        """
        forms = [canonical(message, field=f"messages.{i}") for i, message in enumerate(previous_messages)]
        if not forms or forms[-1]["role"] != "assistant":
            raise ValueError("the earlier messages end with an answer")
        new = [canonical(m, field=f"messages.{i}") for i, m in enumerate(new_messages, start=len(forms))]
        known = Beginning(outline_of(forms[:-1]), len(forms) - 1, lambda: forms[:-1])
        added = self.behind_answer(known, kind_of(forms[-1]), previous_ids, new, Setting(tools, clock))
        return None if added is None else [*previous_ids, *added]

    def behind_answer(
        self, beginning: Beginning, answer: Kind, sampled: Sequence[int], new: Forms, setting: Setting
    ) -> list[int] | None:
        """Ids that follow the prompt of `beginning` and the answer `sampled` to it when `new` messages come.

        The end of the turn and the template's glue behind it are added exactly as far as `sampled` lacks them, so an
        answer cut by length gets its missing end token. None if the template writes the earlier turns differently.
        """
        increment = self._increments.behind_answer(beginning, answer, new, setting)
        if increment is None:
            return None
        return self._encode(increment.pieces)[self._present(sampled, increment.pieces) :]

    def behind_prompt(self, beginning: Beginning, new: Forms, setting: Setting) -> tuple[list[int], list[int]] | None:
        """Ids at the end of the prompt of `beginning` that have to go, and those that come instead with `new`."""
        increment = self._increments.behind_prompt(beginning, new, setting)
        return None if increment is None else (self._encode(increment.dropped), self._encode(increment.pieces))

    def has_reasoning(self, sampled: Sequence[int]) -> bool:
        """Whether an answer's ids contain the markers of reasoning, as control tokens or spelled out."""
        if any(self._control.ids.get(marker) in sampled for marker in _THINK):
            return True
        text = self.decode(sampled)
        return any(marker in text for marker in _THINK)

    def encode_text(self, text: str) -> list[int]:
        """Ids of ordinary text; a control marker in it is spelled out, never a control id."""
        return self._ordinary.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids, control tokens left out, U+FFFD for invalid bytes."""
        decoder = self.decode_stream()
        return decoder.push(ids) + decoder.flush()

    def token_bytes(self, token: int) -> bytes:
        """What one id stands for; a control token is spelled out."""
        spelled = self._spelled.get(token)
        return self._bytes[token] if spelled is None else spelled.encode()

    def decode_stream(self) -> Detokenizer:
        """A fresh incremental decoder for one answer."""
        return Detokenizer(self._bytes)

    def _text(self, forms: Forms, guard: str, tools: list[Any] | None, prompt: bool, clock: float | None) -> str:
        messages = [self.reading.put(self._protected(form, guard)) for form in forms]
        protected = self._control.protect(tools, guard, sampled=False)
        return self._template.render(messages, add_generation_prompt=prompt, tools=protected, clock=clock)

    def _protected(self, form: dict[str, Any], guard: str) -> dict[str, Any]:
        """Of what an assistant said, its text and reasoning may hold markers the policy samples; nothing else may."""
        said = ("content", "reasoning_content") if form["role"] == "assistant" else ()
        return {key: self._control.protect(value, guard, sampled=key in said) for key, value in form.items()}

    def _encode(self, pieces: Iterable[int | str]) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            ids.extend([piece] if isinstance(piece, int) else self.encode_text(piece))
        return ids

    def _present(self, sampled: Sequence[int], pieces: Sequence[int | str]) -> int:
        """How many leading ids of an increment already stand at the end of an answer: any end-of-turn id stands for
        the template's, and the glue up to the next control token may have been sampled too."""
        glue: list[int] = []
        if len(pieces) > 1 and isinstance(pieces[1], str) and (len(pieces) == 2 or isinstance(pieces[2], int)):
            glue = self.encode_text(pieces[1])
        for length in range(min(len(glue), len(sampled) - 1), -1, -1):
            end = len(sampled) - length
            if sampled[end - 1] in self._increments.ends and list(sampled[end:]) == glue[:length]:
                return length + 1
        return 0

    def _find_end_of_turn(self, declared: set[int]) -> tuple[int, ...]:
        """Ends that the folder declares, and the marker that the template writes behind an assistant's text."""
        guard = self._control.guard_for([])
        probe = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
        written = self._control.split(self._text(probe, guard, None, False, None), guard)
        last = next((piece for piece in reversed(written) if isinstance(piece, int)), None)
        return tuple(sorted(declared if last is None else declared | {last}))

    def _probe(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> str:
        return self._template.render(messages, add_generation_prompt=False, tools=tools, clock=0.0)

    def _refused(self, forms: Forms, setting: Setting) -> bool:
        try:
            self.render_forms(forms, setting)
        except InvalidRequest:
            return True
        return False

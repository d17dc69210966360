"""One answer as it grows: sampled ids in, events out.

Only ids the policy sampled come here, so nothing in a tool's result or a user's text can be taken for a call. It lives
with the request: a character, a marker or a stop string that is cut by a move to another engine is completed there.
"""

from collections.abc import Callable, Sequence

from infra.tokenizer import ChatTokenizer, Detokenizer
from workers.proxy.answer.events import Event
from workers.proxy.answer.format import AnswerFormat, format_named, format_of_template, parameter_types
from workers.proxy.answer.parser import AnswerParser

_TAIL_TOKENS = 16


class Answer:
    """`markers`: special ids that the parser must see as text. `stepwise`: whether the exact id that ends the answer
    matters (there are stop strings, or only one call is wanted)."""

    def __init__(
        self,
        decoder: Callable[[], Detokenizer],
        parser: Callable[[], AnswerParser],
        markers: dict[int, str],
        *,
        stepwise: bool,
        mark_text: bool,
        ends: frozenset[int],
    ) -> None:
        self._new_decoder, self._new_parser = decoder, parser
        self._decoder, self._parser = decoder(), parser()
        self._markers, self._stepwise = markers, stepwise or mark_text
        self._mark_text, self._ends = mark_text, ends
        self.text_positions: list[int] = []
        """Which of the ids made text for the client; kept only where log-probs of the text are wanted."""
        self._pushed = 0
        self.reasoning_tokens = 0
        """How many of the ids are reasoning, its markers among them."""

    @property
    def stopped(self) -> bool:
        return self._parser.stopped

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the answer."""
        return self._parser.stopped_by

    def push(self, ids: Sequence[int]) -> tuple[list[Event], int]:
        """Events to show now, and how many of `ids` belong to the answer: fewer than given once it has stopped."""
        if not self._stepwise and not self._parser.may_think:
            return self._parser.push(self._decoded(ids)), len(ids)
        events: list[Event] = []
        for used, token in enumerate(ids, start=1):
            could, thought = self._parser.may_be_text, self._parser.thinking
            events.extend(self._parser.push(self._decoded([token])))
            self.reasoning_tokens += thought or self._parser.thinking
            if self._mark_text and could and self._parser.may_be_text and token not in self._ends:
                self.text_positions.append(self._pushed)
            self._pushed += 1
            if self._parser.stopped:
                return events, used
        return events, len(ids)

    def finish(self) -> list[Event]:
        """What is still to be shown at the end: held-back text, and U+FFFD for a character that was cut off."""
        if self.stopped:
            return []
        return [*self._parser.push(self._decoder.flush()), *self._parser.finish()]

    def begin_again(self) -> None:
        """Forget everything."""
        self._decoder, self._parser = self._new_decoder(), self._new_parser()
        self.text_positions, self._pushed, self.reasoning_tokens = [], 0, 0

    def _decoded(self, ids: Sequence[int]) -> str:
        if not self._markers or self._markers.keys().isdisjoint(ids):
            return self._decoder.push(ids)
        parts: list[str] = []
        for token in ids:
            marker = self._markers.get(token)
            parts.append(self._decoder.push([token]) if marker is None else self._decoder.flush() + marker)
        return "".join(parts)


class Answers:
    """Makes answers of one policy. `form`: the name of a format, or auto for the one its template shows."""

    def __init__(self, tokenizer: ChatTokenizer, form: str = "auto") -> None:
        self._tokenizer = tokenizer
        self.form: AnswerFormat = (
            format_of_template(tokenizer.template_source) if form == "auto" else format_named(form)
        )
        self._markers = {
            tokenizer.control_ids[text]: text for text in self.form.markers if text in tokenizer.special_texts
        }

    def begin(
        self,
        prompt_ids: Sequence[int],
        *,
        stops: Sequence[str] = (),
        tools: list | None = None,
        single_call: bool = False,
        mark_text: bool = False,
    ) -> Answer:
        """The answer to a prompt. `tools`: what may be called (None or empty: markup of calls is text)."""
        thinking = self._opened_reasoning(prompt_ids)
        types = parameter_types(tools)

        def parser() -> AnswerParser:
            return AnswerParser(self.form, stops, tools=bool(tools), thinking=thinking, single=single_call, types=types)

        return Answer(
            self._tokenizer.decode_stream,
            parser,
            self._markers,
            stepwise=bool(stops) or single_call,
            mark_text=mark_text,
            ends=frozenset(self._tokenizer.end_of_turn_ids),
        )

    def _opened_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the template has begun the answer with an open reasoning marker."""
        opener = self.form.think[0]
        if not opener:
            return False
        decoder, ids = self._tokenizer.decode_stream(), prompt_ids[-_TAIL_TOKENS:]
        if self._markers.keys().isdisjoint(ids):
            tail = decoder.push(ids)
        else:
            tail = "".join(self._markers.get(token) or decoder.push([token]) for token in ids)
        return tail.rstrip().endswith(opener)

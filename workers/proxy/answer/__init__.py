"""What a sampled answer means: reasoning, text and tool calls, found in the token stream as it grows.

`Answers` is built once from the policy's tokenizer; `Answers.begin` gives one `Answer` per call, which lives with the
call and so survives a move to another engine. Nothing here knows a wire format, HTTP or an engine.
"""

from workers.proxy.answer.answer import Answer, Answers
from workers.proxy.answer.events import Event, Kind, assistant_message, merged
from workers.proxy.answer.format import AnswerFormat, format_named, format_of_template

__all__ = [
    "Answer",
    "AnswerFormat",
    "Answers",
    "Event",
    "Kind",
    "assistant_message",
    "format_named",
    "format_of_template",
    "merged",
]

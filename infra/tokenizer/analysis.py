"""What a chat template allows, found out at start by rendering probe conversations.

For every kind of boundary a session is made of (an answer followed by a user's message, by one or several tool
results, with and without reasoning, tools, a system message, a long past) the increment is compared with rendering
the whole. One difference, or no boundary that keeps earlier turns, and the template is rendered whole from then on.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from infra.tokenizer.increment import Beginning, Forms, Increments, Setting
from infra.tokenizer.outline import Kind, outline_of, stand_in

Verdict = Literal["kept", "rewritten", "unequal", "refused"]
_ROUNDS = 9
"""Messages of the long past come to more than a template that keeps the last few would keep."""


@dataclass(frozen=True)
class TemplateAnalysis:
    """`incremental`: increments can be trusted (each shape is still checked once). `boundaries`: by name, whether the
    earlier turns are kept, rewritten, unequal to a whole rendering, or the template refuses such a conversation.
    `reads_clock`: it prints the time, which is then that of the conversation's first call."""

    incremental: bool
    boundaries: dict[str, Verdict]
    reads_clock: bool

    def __str__(self) -> str:
        rewritten = sorted(name for name, verdict in self.boundaries.items() if verdict == "rewritten")
        unequal = sorted(name for name, verdict in self.boundaries.items() if verdict == "unequal")
        how = "incremental" if self.incremental else "rendered whole"
        details = [f"unequal at: {', '.join(unequal)}"] if unequal else []
        details += [f"earlier turns rewritten at: {', '.join(rewritten)}"] if rewritten else []
        details += ["reads the clock"] if self.reads_clock else []
        return "; ".join([how, *details])


@dataclass(frozen=True)
class _Probe:
    name: str
    past: list[dict[str, Any]]
    answer: Kind
    new: list[dict[str, Any]]
    tools: bool = False


def analyse(
    increments: Increments, refused: Callable[[Forms, Setting], bool], reads_clock: Callable[[], bool]
) -> TemplateAnalysis:
    """Try every boundary. `refused`: whether the template cannot render these messages at all."""
    verdicts: dict[str, Verdict] = {}
    setting = Setting(clock=0.0)
    tools = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}]
    for probe in _probes():
        used = replace(setting, tools=tools if probe.tools else None)
        verdicts[probe.name] = _verdict(increments, probe, used, refused)
    sound = "unequal" not in verdicts.values()
    return TemplateAnalysis(sound and "kept" in verdicts.values(), verdicts, reads_clock())


def _verdict(
    increments: Increments, probe: _Probe, setting: Setting, refused: Callable[[Forms, Setting], bool]
) -> Verdict:
    answer = stand_in(probe.answer, "answer")
    if refused([*probe.past, answer, *probe.new], setting):
        return "refused"
    beginning = Beginning(outline_of(probe.past), len(probe.past), lambda: probe.past)
    known = increments.refuted
    found = increments.behind_answer(beginning, probe.answer, probe.new, setting)
    if increments.refuted > known:
        return "unequal"
    return "kept" if found is not None else "rewritten"


def _probes() -> Iterator[_Probe]:
    system, user = {"role": "system", "content": "rules"}, {"role": "user", "content": "question"}
    tool = {"role": "tool", "content": "result", "tool_call_id": "c"}
    plain, thinking = Kind("assistant", True), Kind("assistant", True, thinks=True)
    calling, both = Kind("assistant", False, calls=1), Kind("assistant", False, calls=2)
    thoughtful = Kind("assistant", False, thinks=True, calls=1)
    one = stand_in(calling, "c")
    for tools in (False, True):
        for name, start in (("", [user]), (" with system", [system, user])):
            suffix = name + (" with tools" if tools else "")
            talk = [*start, *[stand_in(plain, "reply"), user] * _ROUNDS]
            work = [*start, *[one, tool] * _ROUNDS]
            yield _Probe(f"answer, user{suffix}", start, plain, [user], tools)
            yield _Probe(f"answer, user after long talk{suffix}", talk, plain, [user], tools)
            yield _Probe(f"call, result{suffix}", start, calling, [tool], tools)
            yield _Probe(f"call, result after long work{suffix}", work, calling, [tool], tools)
            yield _Probe(f"answer, user after long work{suffix}", work, plain, [user], tools)
            yield _Probe(f"two calls, two results{suffix}", start, both, [tool, tool], tools)
            yield _Probe(f"reasoning and call, result{suffix}", work, thoughtful, [tool], tools)
            yield _Probe(f"reasoning, user{suffix}", start, thinking, [user], tools)

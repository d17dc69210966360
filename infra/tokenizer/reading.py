"""How messages must be put so that a given chat template shows all of them.

Templates differ in what they read: some know no `reasoning_content`, no tool calls, no developer role; some want
argument objects and some argument text. What a template does is found out once, by rendering small probes, and never
by its name. A message that a template would drop or choke on is put in the plain way that the template does show.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workflows.messages.errors import InvalidRequest

Render = Callable[[list[dict[str, Any]], list[Any] | None], str]
"""Messages and tools to text, without a generation prompt; raises InvalidRequest."""

_USER = {"role": "user", "content": "question"}
_RESULT = {"role": "tool", "content": "proberesult", "tool_call_id": "c1"}
_TOOL = {"type": "function", "function": {"name": "probetool", "parameters": {"type": "object", "properties": {}}}}


@dataclass(frozen=True)
class TemplateReading:
    """`reasoning`: it writes `reasoning_content` itself; `inline`: it leaves reasoning in front of a text, at least of
    the last answer (one that does neither wants none). `calls`: it writes tool calls; `calls_bare`: only
    of messages whose content is null. `results`: it writes tool results. `argument_objects`: it wants
    arguments as objects, else as JSON text; `argument_texts`: it also takes text that is no object. `parallel`: it
    takes several calls in one message. `developer`: it shows that role. `tools`: it shows the tools it is given."""

    reasoning: bool
    inline: bool
    calls: bool
    calls_bare: bool
    results: bool
    argument_objects: bool
    argument_texts: bool
    parallel: bool
    developer: bool
    tools: bool

    def put(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """A message in canonical form as the template should get it.

        Reasoning a template does not know goes in front of the text between <think> markers, calls it does not know
        behind the text as JSON between <tool_call> markers, and results in a user's message between <tool_response>
        markers. Arguments that are no JSON object stay the text they are;
        for a template that takes only objects they become `{"arguments": text}`.
        """
        message = dict(form)
        if message["role"] == "developer" and not self.developer:
            message["role"] = "system"
        reasoning = None if self.reasoning else message.pop("reasoning_content", None)
        if reasoning is not None and self.inline:
            thought = reasoning.strip("\n")
            message["content"] = f"<think>\n{thought}\n</think>\n\n{message['content']}"
        if "tool_calls" in message:
            calls = [self._call(call) for call in message.pop("tool_calls")]
            if self.calls:
                message["tool_calls"] = calls
                if self.calls_bare:
                    message["content"] = None
            else:
                message["content"] = "\n".join([message["content"], *map(_written, calls)]).lstrip("\n")
        if message["role"] == "tool" and not self.results:
            message = {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
        return message

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            if self.calls and not self.argument_texts:
                arguments = {"arguments": arguments} if arguments else {}
        elif self.calls and not self.argument_objects:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**call["function"], "arguments": arguments}}


def reading_of(render: Render) -> TemplateReading:
    """What a template does, by probes."""

    def shown(*messages: dict[str, Any], tools: list[Any] | None = None) -> str:
        try:
            return render([*messages], tools)
        except InvalidRequest:
            return ""

    bare = False

    def calling(arguments: Any, times: int = 1) -> str:
        call = {"id": "c1", "type": "function", "function": {"name": "probename", "arguments": arguments}}
        answer = {"role": "assistant", "content": None if bare else "", "tool_calls": [call] * times}
        return shown(_USER, answer, _RESULT) or shown(_USER, answer)

    marked = "<think>\nprobethought\n</think>\n\nanswer"

    def thinking(**more: Any) -> str:
        return shown(_USER, {"role": "assistant", "content": "answer", "reasoning_content": "probethought", **more})

    as_object, as_text = calling({"probekey": "v"}), calling('{"probekey": "v"}')
    if "probename" not in as_object + as_text:
        bare = True
        as_object, as_text = calling({"probekey": "v"}), calling('{"probekey": "v"}')
        bare = "probename" in as_object + as_text
    objects = "probekey" in as_object and "'probekey'" not in as_object
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {} if objects else "{}"}}
    early = shown({"role": "developer", "content": "probeorder"}, _USER)
    late = shown(
        _USER, {"role": "assistant", "content": "answer"}, {"role": "developer", "content": "probeorder"}, _USER
    )
    return TemplateReading(
        reasoning="probethought" in thinking() or "probethought" in thinking(tool_calls=[call]),
        inline="probethought" in shown(_USER, {"role": "assistant", "content": marked}),
        calls="probename" in as_object or "probename" in as_text,
        calls_bare=bare,
        results="proberesult" in as_object + as_text + shown(_USER, {"role": "assistant", "content": "a"}, _RESULT),
        argument_objects=objects,
        argument_texts="probekey" in as_text,
        parallel=calling({"probekey": "v"} if objects else '{"probekey": "v"}', times=2).count("probekey") > 1,
        developer="probeorder" in early and "probeorder" in late,
        tools="probetool" in shown(_USER, tools=[_TOOL]) or "probetool" in shown(
            {"role": "system", "content": "rules"}, _USER, tools=[_TOOL]
        ),
    )  # fmt: skip


def _written(call: Mapping[str, Any]) -> str:
    written = json.dumps(
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}, ensure_ascii=False
    )
    return f"<tool_call>\n{written}\n</tool_call>"

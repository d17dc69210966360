"""Reasoning, text and tool calls in an answer, wherever it is cut (field cases 3, 7, 22)."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.proxy.answer import Kind, assistant_message, format_named, format_of_template, merged
from workers.proxy.answer.parser import AnswerParser
from workflows.messages.errors import InvalidSpec

QWEN = '<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls"}}\n</tool_call>'
XML = "<tool_call>\n<function=write>\n<parameter=path>\na.py\n</parameter>\n<parameter=lines>\n[1, 2]\n</parameter>\n"
V3 = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>'
V31 = '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
TYPES = {"write": {"path": "string", "lines": "array"}}


def read(form, pieces, **options):
    """The events of an answer that arrives in `pieces`, as (kind, text, index), and the parser."""
    parser = AnswerParser(format_named(form), options.pop("stops", ()), **{"tools": True, **options})
    events = [event for piece in pieces for event in parser.push(piece)]
    events += parser.finish()
    return [(event.kind, event.text, event.index) for event in merged(events)], parser


def call(name, arguments, index=0, *, ended=True):
    pieces = [(Kind.CALL, name, index), *([(Kind.ARGUMENTS, arguments, index)] if arguments else [])]
    return [*pieces, *([(Kind.CALL_END, "", index)] if ended else [])]


def calls_of(said):
    return f"<｜tool▁calls▁begin｜>{said}<｜tool▁calls▁end｜>"


def text(value):
    return [(Kind.TEXT, value, 0)]


@pytest.mark.parametrize(
    ("form", "said", "events"),
    [
        ("qwen-json", QWEN, call("bash", '{"cmd": "ls"}')),
        ("qwen-json", "I look.\n" + QWEN, [*text("I look."), *call("bash", '{"cmd": "ls"}')]),
        ("qwen-json", f"{QWEN}\n{QWEN}", [*call("bash", '{"cmd": "ls"}'), *call("bash", '{"cmd": "ls"}', 1)]),
        ("qwen-json", "<think>\nhm\n</think>\n\nyes", [(Kind.REASONING, "hm", 0), *text("yes")]),
        ("qwen-json", f"<think>\n{QWEN} or not", [(Kind.REASONING, f"{QWEN} or not", 0)]),
        ("qwen-json", "<think>hm</think>\n" + QWEN, [(Kind.REASONING, "hm", 0), *call("bash", '{"cmd": "ls"}')]),
        ("qwen-json", "a <think>b</think>", text("a <think>b</think>")),
        # Raw argument text, however it is spelled, and arguments of every shape.
        ("qwen-json", '<tool_call>{"name":"f","arguments":{ "a":1 ,"b":"\\u00e9"}}</tool_call>',
         call("f", '{ "a":1 ,"b":"\\u00e9"}')),
        ("qwen-json", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', call("f", '{"a": 1}')),
        ("qwen-json", '<tool_call>{"name": "f", "arguments": "x"}</tool_call>', call("f", '"x"')),
        ("qwen-json", '<tool_call>{"name": "f", "arguments": [1, 2]}</tool_call>', call("f", "[1, 2]")),
        ("qwen-json", '<tool_call>{"name": "f", "arguments": null}</tool_call>', call("f", "null")),
        ("qwen-json", '<tool_call>{"name": "f", "arguments": }</tool_call>', call("f", "")),
        ("qwen-json", '<tool_call>{"name": "f"}</tool_call>', call("f", "{}")),
        ("qwen-json", '<tool_call>{"arguments": {"a":1}, "name": "f"}</tool_call>', call("f", '{"a":1}')),
        ("qwen-json", '<tool_call>[{"name": "f", "arguments": {}}, {"name": "g"}]</tool_call>',
         [*call("f", "{}"), *call("g", "{}", 1)]),
        # The closing marker inside a string is text of the argument.
        ("qwen-json", '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call> b',
         [*call("f", '{"a": "</tool_call>"}'), *text(" b")]),
        # Broken ones: a call whose name is known stays one, with what was sampled; anything else is text.
        ("qwen-json", '<tool_call>{"name": "f", "arguments": {"a": "b\n</tool_call>c',
         [*call("f", '{"a": "b\n'), *text("c")]),
        ("qwen-json", '<tool_call>{"name": "f", "arguments": {"a": {"b": 1}}</tool_call>',
         call("f", '{"a": {"b": 1}}')),
        ("qwen-json", '<tool_call>{"name": "f", "arguments": {"a": 1', call("f", '{"a": 1', ended=False)),
        ("qwen-json", '<tool_call>{"name": "f", "arguments": {"a": 1}', call("f", '{"a": 1}')),
        ("qwen-json", f'<tool_call>{{"name": "f", "arguments": {{}}}}\n{QWEN}',
         [*call("f", "{}"), *call("bash", '{"cmd": "ls"}', 1)]),
        ("qwen-json", '<tool_call>{"name": "f", "arg', text('<tool_call>{"name": "f", "arg')),
        ("qwen-json", "see <tool_call>what?</tool_call>!", text("see <tool_call>what?</tool_call>!")),
        ("qwen-json", f"no <tool_call>{QWEN}", [*text("no <tool_call>"), *call("bash", '{"cmd": "ls"}')]),
        ("qwen-json", '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
         text('<tool_call>{"name": 3, "arguments": {}}</tool_call>')),
        ("qwen-json", '<tool_call>{"name": "f", "arguments": {}, "id": 7}</tool_call>',
         [*call("f", "{}"), *text(', "id": 7}')]),
        ("qwen-json", "  spaces stay \n", text("  spaces stay \n")),
        ("qwen-json", "<thin", text("<thin")),
        ("qwen-json", "a <tool", text("a <tool")),
        ("qwen-json", "", []),
        ("qwen-xml", XML + "</function>\n</tool_call>", call("write", '{"path": "a.py", "lines": [1, 2]}')),
        ("qwen-xml", XML + "</tool_call>", call("write", '{"path": "a.py", "lines": [1, 2]}')),
        ("qwen-xml", XML.split(" 2")[0], call("write", '{"path": "a.py", "lines": [1,', ended=False)),
        ("qwen-xml", "<tool_call><function=f><parameter=q>\nlong \"te", call("f", '{"q": "long \\"te', ended=False)),
        ("qwen-xml", '<tool_call><function=f><parameter=q>say "</parameter></function></tool_call>',
         call("f", '{"q": "say \\""}')),
        ("qwen-xml", "<tool_call>\n<function=f>\n</function>\n</tool_call>", call("f", "{}")),
        ("qwen-xml", QWEN, text(QWEN)),
        ("qwen-xml", "<tool_call><function=f", text("<tool_call><function=f")),
        ("llama-json", '{"name": "f", "parameters": {"a": 1}}', call("f", '{"a": 1}')),
        ("llama-json", '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"b": "}"}}',
         [*call("f", "{}"), *call("g", '{"b": "}"}', 1)]),
        ("llama-json", '{"type": "function", "name": "f", "parameters": {}}', call("f", "{}")),
        ("llama-json", '{"answer": 42}', text('{"answer": 42}')),
        ("llama-json", "text {}", text("text {}")),
        ("llama-json", '<|python_tag|>search.call(query="x")', text('<|python_tag|>search.call(query="x")')),
        ("deepseek", "I look.\n" + calls_of(f"{V3}\n{V3}"),
         [*text("I look."), *call("f", '{"a": 1}'), *call("f", '{"a": 1}', 1)]),
        ("deepseek", calls_of(V31 + V31), [*call("f", '{"a": 1}'), *call("f", '{"a": 1}', 1)]),
        ("deepseek", calls_of("<｜tool▁call▁begin｜>what<｜tool▁call▁end｜>"),
         text("<｜tool▁call▁begin｜>what<｜tool▁call▁end｜>")),
        ("deepseek", calls_of(V31).split("}")[0], call("f", '{"a": 1', ended=False)),
        ("plain", "<think>" + QWEN, text("<think>" + QWEN)),
    ],
)  # fmt: skip
def test_what_an_answer_means(form, said, events):
    for pieces in ([said], list(said), [said[:7], said[7:]]):
        assert read(form, pieces, types=TYPES)[0] == events, pieces


PARTS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<function=f>", "</function>", "<parameter=a>", "{", "}"]
PARTS += [
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "function",
    "```json\n",
    "<｜tool▁calls▁end｜>",
]
PARTS += [
    "</parameter>",
    '{"name": "f", "arguments": ',
    '{"name"',
    '"',
    "\\",
    "\n",
    " ",
    "삼👩",
    "x",
    ",",
    ";",
    "[",
    "<",
]


@settings(max_examples=400, deadline=None)
@given(
    form=st.sampled_from(["qwen-json", "qwen-xml", "llama-json", "deepseek"]),
    said=st.lists(st.sampled_from(PARTS), max_size=14).map("".join),
    single=st.booleans(),
    stops=st.lists(st.sampled_from(["x", "<tool", "}}"]), max_size=1),
    data=st.data(),
)
def test_any_cut_gives_the_same_events(form, said, single, stops, data):
    """Whatever a policy samples: no crash, and pieces of any size mean what the whole means."""
    whole = read(form, [said], single=single, stops=stops)[0]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(said)), max_size=5)))
    pieces = [said[a:b] for a, b in zip([0, *cuts], [*cuts, len(said)], strict=True)]
    cut = read(form, pieces, single=single, stops=stops)[0]
    letter_by_letter = read(form, list(said), single=single, stops=stops)[0]
    assert whole == cut == letter_by_letter


@settings(max_examples=200, deadline=None)
@given(said=st.lists(st.sampled_from(PARTS), max_size=14).map("".join))
def test_nothing_that_was_sampled_is_lost(said):
    """Every letter of the answer that is no white space and no markup of a call comes out, in order."""
    events, _ = read("qwen-json", [said])
    kept = iter("".join(letter for letter in said if not letter.isspace()))
    for kind, told, _ in events:
        if kind in (Kind.TEXT, Kind.REASONING):
            assert all(letter in kept for letter in told if not letter.isspace()), (said, events)
    if not any(kind is Kind.CALL for kind, _, _ in events) and "think>" not in said:
        told = "".join(told for _, told, _ in events)
        assert "".join(told.split()) == "".join(said.split())


def test_stop_strings_end_what_a_client_sees_only():
    """Not reasoning, not arguments; the stop string is named and is not part of the answer."""
    said = '<think>an END</think>\n\n<tool_call>{"name": "f", "arguments": {"a": "END"}}</tool_call>an END of it'
    events, parser = read("qwen-json", list(said), stops=["END"])
    assert events == [(Kind.REASONING, "an END", 0), *call("f", '{"a": "END"}'), *text("an ")]
    assert (parser.stopped, parser.stopped_by) == (True, "END")


def test_one_call_at_most_where_one_is_asked_for():
    events, parser = read("qwen-json", [f"a {QWEN} b {QWEN} c"], single=True)
    assert events == [*text("a"), *call("bash", '{"cmd": "ls"}'), *text(" b")]
    assert (parser.stopped, parser.stopped_by) == (True, None)


def test_markup_is_text_where_no_tools_are_offered():
    assert read("qwen-json", [QWEN], tools=False)[0] == text(QWEN)


def test_reasoning_that_the_template_has_opened():
    assert read("qwen-json", ["\nhm</thi", "nk>\n\nyes"], thinking=True)[0] == [(Kind.REASONING, "hm", 0), *text("yes")]
    assert read("qwen-json", ["cut"], thinking=True)[0] == [(Kind.REASONING, "cut", 0)]


def test_the_message_that_was_sampled():
    parser = AnswerParser(format_named("qwen-json"), tools=True)
    events = [*parser.push(f"<think>hm</think>a\n{QWEN}"), *parser.finish()]
    assert assistant_message(events, "call_{}".format) == {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "bash", "arguments": '{"cmd": "ls"}'}}
        ],
    }
    assert assistant_message([], str) == {"role": "assistant", "content": ""}


def test_the_format_is_the_templates():
    assert format_of_template("... <tool_call> <function=x> ...").name == "qwen-xml"
    assert format_of_template("... <tool_call> ...").name == "qwen-json"
    assert format_of_template("Environment: ipython").name == "llama-json"
    assert format_of_template("... <｜tool▁call▁begin｜> ...").name == "deepseek"
    assert format_of_template("{{ messages }}").name == "qwen-json"
    with pytest.raises(InvalidSpec):
        format_named("nobody's")


def test_arguments_of_a_complete_call_are_the_json_that_was_sampled():
    arguments = json.dumps({"a": 'quote " brace } tag </tool_call> \\', "b": [{"c": "삼겹살"}]}, ensure_ascii=False)
    said = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    assert read("qwen-json", list(said))[0] == call("f", arguments)

"""Tool calls come back from a harness in its own words; what was sampled is what the model goes on from."""

import pytest

from infra.tokenizer import ChatTokenizer
from tests.workers.proxy.conftest import user
from workers.proxy.history import History
from workers.proxy.tool_payloads import ToolPayloads

RAW = '{"path": "a.py",  "n": 1.0}'


def calling(arguments: object, *, id: str = "call_1", name: str = "edit", content: str | None = "") -> dict:
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


@pytest.fixture
def payloads() -> ToolPayloads:
    known = ToolPayloads()
    known.remember(calling(RAW))
    return known


REWRITTEN = [
    '{"path":"a.py","n":1}',
    '{"path": "a.py", "n": 1.0, "mode": "w"}',
    '{"path": "a.py"}',
    "",
    None,
    {"path": "a.py"},
]


@pytest.mark.parametrize("arguments", REWRITTEN)
def test_a_known_call_gets_its_raw_payload_back(payloads: ToolPayloads, arguments: object) -> None:
    (restored,) = payloads.restored([calling(arguments, name="Edit", content=None)])
    assert restored == calling(RAW, content=None)


def test_what_is_not_known_or_not_changed_stays_the_same_object(payloads: ToolPayloads) -> None:
    messages = [user("x"), calling("{}", id="call_2"), calling(RAW), {"role": "assistant", "tool_calls": None}]
    assert payloads.restored(messages) is messages
    assert ToolPayloads().restored(messages) is messages


@pytest.mark.parametrize(
    "odd", [{"tool_calls": "no list"}, {"tool_calls": ["call_1", {"id": 1}, {"id": []}]}, "text", None]
)
def test_what_is_no_tool_call_is_left_for_the_dialect_to_refuse(payloads: ToolPayloads, odd) -> None:
    assert payloads.restored([odd]) == [odd]


@pytest.mark.parametrize("arguments", REWRITTEN)
def test_a_harness_that_rewrites_its_calls_is_no_new_branch(folder, arguments: object) -> None:
    chat, history = ChatTokenizer(folder), History()
    first = history.prompt(chat, [user("a")])
    output = [*chat.encode_text(f"edit {RAW}"), chat.end_of_turn_ids[-1]]
    history.add("one", first, chat, output, calling(RAW))
    result = {"role": "tool", "tool_call_id": "call_1", "content": "done"}
    for _ in range(2):
        prompt = history.prompt(chat, [user("a"), calling(arguments, content=None), result])
        assert (prompt.parent, prompt.fork_reason) == ("one", None)
        assert prompt.ids[: prompt.shared] == [*first.ids, *output]

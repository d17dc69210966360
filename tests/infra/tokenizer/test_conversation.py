"""Field cases 3 and 6: one canonical form a message."""

import pytest

from infra.tokenizer import canonical
from workflows.messages.errors import InvalidRequest


def call(arguments):
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ('{"city": "Paris"}', {"city": "Paris"}),
        ({"city": "Paris"}, {"city": "Paris"}),
        ("{}", {}),
        ("", ""),
        ('{"a": 1', '{"a": 1'),
        ("[1,2]", "[1,2]"),
        ('"x"', '"x"'),
        (None, ""),
    ],
)
def test_arguments(arguments, kept):
    assert canonical(call(arguments))["tool_calls"][0]["function"]["arguments"] == kept


def test_what_client_libraries_add_is_not_there():
    sent = {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "b"},
        ],
        "tool_calls": None,
        "function_call": None,
        "provider_specific_fields": {},
    }
    assert canonical(sent) == {"role": "assistant", "content": "ab"}


def test_a_call_without_a_name():
    with pytest.raises(InvalidRequest) as refused:
        canonical({"role": "assistant", "tool_calls": [{"function": {}}]}, field="messages.4")
    assert refused.value.field == "messages.4.tool_calls.0"

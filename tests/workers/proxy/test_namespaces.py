"""Functions that a harness groups in a namespace: offered like any other, and called back by both names."""

from types import SimpleNamespace

from workers.proxy.dialect import responses
from workers.proxy.dialect.responses_reply import Items


def body(tools):
    return {"model": "policy", "input": "Do it.", "tools": tools}


SHELL = {"type": "function", "name": "shell", "parameters": {"type": "object"}}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "tools": [{"type": "function", "name": "spawn", "description": "one more", "parameters": {"type": "object"}}],
}


def test_functions_of_a_namespace_are_offered_and_called_back_by_both_names():
    asked = responses.parse(body([SHELL, AGENTS]), {})
    assert [tool["function"]["name"] for tool in asked.tools or []] == ["shell", "spawn"]
    items = Items(SimpleNamespace(call="c" * 32, call_id=lambda index: f"call_{index}"), asked)  # type: ignore[arg-type]
    assert items.function("fc_1", 0, "spawn", "{}", "completed")["namespace"] == "agents"
    assert "namespace" not in items.function("fc_2", 1, "shell", "{}", "completed")

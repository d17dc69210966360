"""What templates read, and how messages are put so that nothing is left out (field case 3)."""

import pytest

from infra.tokenizer import ChatTokenizer
from tests.infra.tokenizer.conftest import write_folder
from tests.infra.tokenizer.families import write_family

PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}"
CALLS = "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ARGUMENTS}}]{% endfor %}"


def looping(body):
    return "{% for m in messages %}" + body + "<|im_end|>\n{% endfor %}" + PROMPT


TEMPLATES = {
    "nothing": looping(TURN),
    "objects only": looping(
        TURN
        + CALLS.replace("{{ARGUMENTS}}", "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}")
    ),
    "text only": looping(TURN + CALLS.replace("{{ARGUMENTS}}", "{{ 'a:' + c.function.arguments }}")),
    "printed as they are": looping(TURN + CALLS.replace("{{ARGUMENTS}}", "{{ c.function.arguments }}")),
    "bare calls": looping(
        "<|im_start|>{{ m.role }}\n{% if m.content is none %}"
        + CALLS.replace("{{ARGUMENTS}}", "{{ c.function.arguments | tojson }}")
        + "{% else %}{{ m.content }}{% endif %}"
    ),
    "three roles": looping(
        "{% if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}" + TURN
    ),
    "only what it knows": looping("{% if m.role in ['user', 'assistant'] %}" + TURN + "{% endif %}"),
}
ARGUMENTS = ['{"city": "Paris"}', "{}", "", '{"city": "Par', '["Paris"]', '"Paris"', None]


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    return {name: ChatTokenizer(write_folder(tmp_path_factory.mktemp("t") / "t", t)) for name, t in TEMPLATES.items()}


def worked(arguments):
    function = {"name": "weather", "arguments": arguments}
    return [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": "sunny"},
    ]


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("name", list(TEMPLATES))
def test_no_call_and_no_result_is_left_out(chats, name, arguments):
    text = chats[name].decode(chats[name].render(worked(arguments)))
    assert "weather" in text
    assert "sunny" in text
    assert "None" not in text
    assert arguments is None or "Par" not in arguments or "Par" in text


def test_arguments_take_the_form_a_template_wants(chats):
    shown = {name: chat.decode(chat.render(worked('{"city": "Paris"}'))) for name, chat in chats.items()}
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in shown["nothing"]
    assert "[weather city=Paris]" in shown["objects only"]
    assert '[weather a:{"city": "Paris"}]' in shown["text only"]
    assert '[weather {"city": "Paris"}]' in shown["printed as they are"]
    assert '[weather {"city": "Paris"}]' in shown["bare calls"]
    assert "<tool_response>\nsunny\n</tool_response>" in shown["three roles"]


def test_reasoning_goes_where_a_template_reads_it(chats, tmp_path):
    thought = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes", "reasoning_content": "hm"}]
    qwen, deepseek = (ChatTokenizer(write_family(tmp_path / name, name)) for name in ("qwen", "deepseek"))
    assert "<think>\nhm\n</think>\n\nyes" in chats["nothing"].decode(chats["nothing"].render(thought))
    assert "<think>\nhm\n</think>\n\nyes" in qwen.decode(qwen.render(thought))
    assert "hm" not in deepseek.decode(deepseek.render(thought))


def test_a_developer_is_heard(chats, tmp_path):
    messages = [{"role": "developer", "content": "rules"}, {"role": "user", "content": "q"}]
    for chat in (chats["nothing"], chats["three roles"], ChatTokenizer(write_family(tmp_path, "qwen"))):
        assert "rules" in chat.decode(chat.render(messages))

"""Templates that look back in every way we could think of: what follows a known beginning always equals rendering the
whole, or is refused; and one for which short stand-ins cannot work is found out at start."""

import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.tokenizer import ChatTokenizer
from tests.infra.tokenizer.conftest import write_folder

LOOP = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
NUMBERED = LOOP.replace("{{ m.role }}", "{{ m.role }} {{ loop.index }}") + PROMPT
COUNTED = "{{ messages | length }} messages\n" + LOOP + PROMPT
REMINDED = (
    LOOP
    + "{% if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    + PROMPT
)
LAST_SIX = "{% set messages = messages[-6:] %}" + LOOP + PROMPT
EVERY_FIFTH = LOOP.replace("<|im_end|>", "{% if loop.index % 5 == 0 %} (mind the rules){% endif %}<|im_end|>") + PROMPT
STRICT = (  # turns must alternate; tools stand in front of the last user message
    "{% set turns = messages | rejectattr('role', 'in', ['system', 'tool']) | list %}"
    "{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('alternate') }}{% endif %}{% endfor %}{% set at = namespace(user=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set at.user = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if tools and loop.index0 == at.user %}"
    "<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + PROMPT
)
DATED = "<|im_start|>system\n{{ strftime_now('%Y-%m-%d %H:%M') }}<|im_end|>\n" + LOOP + PROMPT
GLUED = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if not loop.last %}, {% endif %}{% endfor %}" + PROMPT
GENERATION = LOOP.replace("{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}") + PROMPT
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]

ALL = {
    "numbered": NUMBERED,
    "counted": COUNTED,
    "reminded": REMINDED,
    "last six": LAST_SIX,
    "every fifth": EVERY_FIFTH,
    "strict": STRICT,
    "dated": DATED,
    "glued": GLUED,
    "generation": GENERATION,
    "plain": LOOP + PROMPT,
}


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    return {name: ChatTokenizer(write_folder(tmp_path_factory.mktemp("t") / "t", text)) for name, text in ALL.items()}


@pytest.mark.parametrize("name", ["strict", "dated", "generation", "plain"])
def test_templates_that_look_back_little(chats, name):
    assert chats[name].analysis.incremental


@pytest.mark.parametrize("name", ["numbered", "counted", "last six", "every fifth", "glued"])
def test_templates_that_must_be_rendered_whole_are_found_out_at_start(chats, name, caplog):
    assert not chats[name].analysis.incremental
    with caplog.at_level("WARNING"):
        ChatTokenizer(chats[name].folder)
    assert "rendered whole" in caplog.text


def test_what_the_analysis_says(chats, thinking_chat):
    assert chats["dated"].analysis.reads_clock
    assert not chats["plain"].analysis.reads_clock
    assert "reasoning, user" in str(thinking_chat.analysis)
    assert thinking_chat.analysis.boundaries["reasoning, user"] == "rewritten"
    assert thinking_chat.analysis.boundaries["call, result"] == "kept"


words = st.text("abc <|>\n.", max_size=8).map(str.strip)
rounds = st.lists(
    st.tuples(words, st.lists(st.tuples(st.sampled_from(["user", "tool"]), words), min_size=1, max_size=2))
)


@pytest.mark.parametrize("name", list(ALL))
@given(data=st.data())
@settings(deadline=None, max_examples=25)
def test_what_follows_an_answer_equals_rendering_at_once(chats, name, data):
    """Or it is refused: never anything else, whatever the template."""
    chat, tools = chats[name], data.draw(st.sampled_from([None, TOOLS]))
    said = [{"role": "system", "content": "rules"}] if data.draw(st.booleans()) else []
    said.append({"role": "user", "content": "q"})
    for answer, new in data.draw(rounds.filter(bool)):
        if name == "strict":
            new = [("tool", text) for _, text in new[:-1]] + [("user", new[-1][1])]
        known = [*said, {"role": "assistant", "content": answer}]
        following = [{"role": role, "content": text} for role, text in new]
        prompt = chat.render(said, tools=tools, clock=0.0)
        ids = [*prompt, *chat.encode_text(answer), chat.end_of_turn_ids[-1]]
        extended = chat.extend(ids, known, following, tools=tools, clock=0.0)
        said = [*known, *following]
        if extended is not None:
            assert extended == chat.render(said, tools=tools, clock=0.0)
        elif name in ("plain", "dated", "generation"):
            raise AssertionError("nothing is rewritten here")


def test_the_clock_is_the_conversations(chats):
    noon = datetime.datetime(2026, 5, 4, 12, 30).timestamp()
    assert "2026-05-04 12:30" in chats["dated"].decode(
        chats["dated"].render([{"role": "user", "content": "q"}], clock=noon)
    )


def test_a_shape_that_fails_the_check_is_rendered_whole_and_told(tmp_path, caplog):
    """A template that looks at something no probe has: the check at first use finds it."""
    odd = LOOP.replace(
        "<|im_end|>", "{% if messages[0].content == 'odd' %} {{ messages | length }}{% endif %}<|im_end|>"
    )
    chat = ChatTokenizer(write_folder(tmp_path, odd + PROMPT))
    assert chat.analysis.incremental
    said = [{"role": "user", "content": "odd"}, {"role": "assistant", "content": "a"}]
    known = [*chat.render(said[:1]), *chat.encode_text("a"), chat.end_of_turn_ids[-1]]
    with caplog.at_level("WARNING"):
        assert chat.extend(known, said, [{"role": "tool", "content": "t"}] * 3) is None
    assert "looks back further" in caplog.text or "rendered whole" in caplog.text

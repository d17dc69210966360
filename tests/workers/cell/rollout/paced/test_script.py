"""Scripted replies: found again after a move in mid-answer, turn by turn."""

import pytest

from infra.tokenizer import ChatTokenizer
from tests.infra.tokenizer.conftest import write_folder
from workers.cell.rollout.paced.script import Conversation, Rule, Script, ScriptReader, load_script
from workers.cell.rollout.paced.vocabulary import read_vocabulary
from workflows.messages.errors import InvalidSpec

SCRIPT = Script(
    rules=(Rule(match="^fix", replies=("look first", "then fix")), Rule(match="bye", turn=2, replies=("so long",))),
    default="what?",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("scripted"))


def reader(folder, script=SCRIPT):
    vocabulary = read_vocabulary(str(folder), 0)
    return ScriptReader(script, vocabulary.tokenizer, vocabulary.ends[-1] if vocabulary.ends else None)


def conversation(*texts):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("texts", "reply"),
    [
        (["fix it"], "look first"),
        (["fix it", "look first", "fix it"], "then fix"),
        (["fix it", "a", "fix it", "b", "fix"], "then fix"),
        (["hello"], "what?"),
        (["a", "b", "c", "d", "bye"], "so long"),
        (["bye"], "what?"),
    ],
)
def test_turns_and_patterns(folder, texts, reply):
    chat = ChatTokenizer(folder)
    said = reader(folder).remaining(chat.render(conversation(*texts)), "")
    assert said is not None
    assert chat.decode(said) == reply
    assert said[-1] in chat.end_of_turn_ids


def test_a_moved_answer_goes_on_where_it_stood(folder):
    prompt = ChatTokenizer(folder).render(conversation("fix it"))
    whole = reader(folder).remaining(prompt, "")
    assert whole is not None
    for cut in range(len(whole)):
        assert reader(folder).remaining([*prompt, *whole[:cut]], "") == whole[cut:]


def test_sessions_and_no_default(folder):
    script = Script(rules=(Rule(session="/00$", replies=("zero",)),))
    prompt = ChatTokenizer(folder).render(conversation("hello"))
    assert reader(folder, script).remaining(prompt, "run/execution/b/0000/01") is None
    assert reader(folder, script).remaining(prompt, "run/execution/b/0000/00") is not None


def test_a_script_needs_a_tokenizer():
    with pytest.raises(InvalidSpec, match="script"):
        ScriptReader(SCRIPT, None, None)


def test_ordinary_ids_are_printable(folder):
    vocabulary = read_vocabulary(str(folder), 0)
    text = ChatTokenizer(folder).decode(vocabulary.ordinary)
    assert text.isascii()
    assert text.isprintable()
    assert vocabulary.size == ChatTokenizer(folder).vocab_size


TOOL_REPLY = '<tool_call>{"name": "read", "arguments": {"path": "{{path}}"}}</tool_call>'


@pytest.mark.parametrize(
    ("rule", "messages", "reply"),
    [
        ({"system": "summar", "replies": ("short",)}, [("system", "Please summarise"), ("user", "x")], "short"),
        ({"system": "summar", "replies": ("short",)}, [("system", "You are an agent"), ("user", "x")], None),
        ({"last": "exit code 0$", "replies": ("done",)}, [("user", "x"), ("tool", "all well\nexit code 0")], "done"),
        ({"last": "exit code 0$", "replies": ("done",)}, [("tool", "exit code 0"), ("user", "x")], None),
        ({"prompt": r"user\nhello", "replies": ("hi",)}, [("user", "hello there"), ("user", "x")], "hi"),
        (
            {"match": r"file (?P<path>\S+)", "replies": (TOOL_REPLY,)},
            [("user", "read the file a/b.py now")],
            '<tool_call>{"name": "read", "arguments": {"path": "a/b.py"}}</tool_call>',
        ),
        ({"match": "x", "replies": ("{{nothing}}",)}, [("user", "x")], "{{nothing}}"),
    ],
)
def test_conditions_and_groups(rule, messages, reply):
    assert Rule(**rule).reply(Conversation(tuple(messages))) == reply


def counting(asked):
    return f"turn {asked.turn} of {asked.session}, after {asked.last}"


def test_a_function_is_a_script(folder):
    chat = ChatTokenizer(folder)
    policy = load_script(f"{__name__}:counting")
    said = reader(folder, policy).remaining(chat.render(conversation("one", "two", "three")), "s")
    assert chat.decode(said) == "turn 1 of s, after three"


def test_scripts_that_do_not_exist():
    assert load_script("") is None
    for source in ("no/such/file.json", "nothing", "tests.no_such:thing", "json:no_such_name"):
        with pytest.raises(InvalidSpec, match="script"):
            load_script(source)

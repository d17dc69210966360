"""Our parser against SGLang's detectors: on complete, well-formed answers both find the same calls, texts, thoughts."""

import json
import random

import pytest

from tests.workers.proxy.test_answer import read
from workers.proxy.answer import Kind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PARAMETERS = {"type": "object", "properties": {"cmd": {"type": "string"}, "lines": {"type": "array"}}}
TYPES = {name: {"cmd": "string", "lines": "array"} for name in ("bash", "edit")}
TEXTS = ["ls", 'say "hi" \\ {x}', "삼겹살 👩‍🚀", "a\nb\n", "</tool", "<think>", "x < y; z > w", "", "[1, 2]"]


def as_json(name, arguments, key="arguments"):
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


def dumped(arguments):
    return json.dumps(arguments, ensure_ascii=False)


def as_tags(name, arguments):
    parts = [
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for key, value in arguments.items()
    ]
    return f"<tool_call>\n<function={name}>\n{''.join(parts)}</function>\n</tool_call>"


def drawn(seed):
    """Calls of one answer."""
    draw = random.Random(seed)
    return [
        (
            draw.choice(["bash", "edit"]),
            {"cmd": draw.choice(TEXTS), "lines": [draw.random() for _ in range(draw.randrange(3))]},
        )
        for _ in range(draw.randrange(1, 4))
    ]


def ours(form, said, step):
    events, _ = read(form, [said[at : at + step] for at in range(0, len(said), step)], types=TYPES)
    calls: list[list] = []
    for kind, told, _ in events:
        if kind is Kind.CALL:
            calls.append([told, ""])
        elif kind is Kind.ARGUMENTS:
            calls[-1][1] += told
    text = "".join(told for kind, told, _ in events if kind is Kind.TEXT)
    return text, [(name, json.loads(arguments)) for name, arguments in calls]


def theirs(detector, said):
    from sglang.srt.entrypoints.openai.protocol import Tool

    tools = [Tool(type="function", function={"name": name, "parameters": PARAMETERS}) for name in ("bash", "edit")]  # pyright: ignore
    found = detector().detect_and_parse(said, tools)
    return found.normal_text, [(call.name, json.loads(call.parameters)) for call in found.calls]


@pytest.mark.parametrize("seed", range(40))
def test_json_with_markers(seed):
    from sglang.srt.function_call.qwen25_detector import Qwen25Detector

    calls = drawn(seed)
    said = "Look." + "".join(f"\n<tool_call>\n{as_json(*call)}\n</tool_call>" for call in calls)
    assert ours("qwen-json", said, seed % 5 + 1) == theirs(Qwen25Detector, said) == ("Look.", calls)


@pytest.mark.parametrize("seed", range(40))
def test_tags(seed):
    from sglang.srt.function_call.qwen3_coder_detector import Qwen3CoderDetector

    calls = [(name, {**arguments, "cmd": arguments["cmd"].rstrip("\n")}) for name, arguments in drawn(seed)]
    said = "Look.\n" + "\n".join(as_tags(*call) for call in calls)
    text, found = theirs(Qwen3CoderDetector, said)
    assert ours("qwen-xml", said, seed % 5 + 1) == (text.strip(), found) == ("Look.", calls)


@pytest.mark.parametrize("seed", range(40))
def test_json_without_markers(seed):
    from sglang.srt.function_call.llama32_detector import Llama32Detector

    calls = drawn(seed)
    said = "<|python_tag|>" * (seed % 2) + ";".join(as_json(*call, "parameters") for call in calls)
    assert ours("llama-json", said, seed % 5 + 1) == theirs(Llama32Detector, said) == ("", calls)


@pytest.mark.parametrize("seed", range(40))
def test_the_name_outside_the_json(seed):
    from sglang.srt.function_call.deepseekv3_detector import DeepSeekV3Detector
    from sglang.srt.function_call.deepseekv31_detector import DeepSeekV31Detector

    calls = drawn(seed)
    if seed % 2:
        written = "".join(
            f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumped(a)}<｜tool▁call▁end｜>" for name, a in calls
        )
    else:
        written = "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumped(a)}\n```<｜tool▁call▁end｜>"
            for name, a in calls
        )
    said = f"Look.<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"
    detector = DeepSeekV31Detector if seed % 2 else DeepSeekV3Detector
    assert ours("deepseek", said, seed % 5 + 1) == theirs(detector, said) == ("Look.", calls)


@pytest.mark.parametrize("said", ["<think>\nhm\n</think>\n\nyes", "yes", "<think>cut", "<think>a</think>b<think>c"])
def test_reasoning(said):
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    thought, text = ReasoningParser("qwen3").parse_non_stream(said)
    events, _ = read("qwen-json", [said])
    assert "".join(told for kind, told, _ in events if kind is Kind.REASONING).strip() == (thought or "").strip()
    assert "".join(told for kind, told, _ in events if kind is Kind.TEXT).strip() == (text or "").strip()

"""Adapters by the name that a burst file uses."""

from harness_adapters.claude_code import ClaudeCode
from harness_adapters.codex import Codex
from harness_adapters.generic import GenericCommand
from harness_adapters.mini_swe_agent import MiniSweAgent
from harness_adapters.pi import Pi
from harness_adapters.protocol import HarnessAdapter
from harness_adapters.qwen_code import QwenCode
from workflows.messages.errors import InvalidSpec


def adapters() -> dict[str, HarnessAdapter]:
    """Every adapter there is."""
    known: list[HarnessAdapter] = [GenericCommand(), MiniSweAgent(), Pi(), Codex(), ClaudeCode(), QwenCode()]
    return {adapter.name: adapter for adapter in known}


def adapter_named(name: str) -> HarnessAdapter:
    """Raises InvalidSpec, naming the ones there are."""
    known = adapters()
    if name not in known:
        raise InvalidSpec(f"no harness {name!r}; there are {sorted(known)}", field="harness.name")
    return known[name]

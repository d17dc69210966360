"""What the harnesses that come as Node packages have in common."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from harness_adapters.choices import checked
from harness_adapters.node_environment import NodeEnvironment
from workflows.messages.burst import HarnessChoice
from workflows.messages.errors import HarnessUnusable

INSTRUCTION = "instruction.md"
"""The instruction, in the home: standard input, so that neither its length nor a dash at its start matters."""
PATIENT_MS = 86_400_000
"""What time-outs of a model call are lifted to: the proxy decides how long one may wait."""
PATIENT_RETRIES = 20


class NodeHarness:
    """Installation and settings. `settings`: name -> kind, as `choices.checked` takes them."""

    name: str
    version: str
    settings: ClassVar[Mapping[str, type]] = {}

    def environment_of(self, harness_root: Path) -> NodeEnvironment:
        return NodeEnvironment(harness_root / self.name, f"harness-{self.name}")

    def installed(self, harness_root: Path) -> bool:
        return self.environment_of(harness_root).is_current()

    def install(self, harness_root: Path) -> None:
        self.environment_of(harness_root).install()

    def check(self, choice: HarnessChoice, harness_root: Path) -> None:
        self.chosen(choice)
        if not self.installed(harness_root):
            raise HarnessUnusable(f"{self.name} {self.version} is not installed; run: gyre harness install {self.name}")

    def chosen(self, choice: HarnessChoice) -> dict[str, Any]:
        """The settings that were given. Raises InvalidSpec."""
        return checked(choice, self.settings)

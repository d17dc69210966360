"""One module per harness: how to install it, launch it, point it at the proxy and read how it ended.

A harness is a black box. An adapter describes a launch as data; it starts nothing and knows no workflow.
"""

from harness_adapters.protocol import (
    CallRole,
    HarnessAdapter,
    HarnessOutcome,
    LaunchContext,
    LaunchPlan,
)
from harness_adapters.registry import adapter_named

__all__ = ["CallRole", "HarnessAdapter", "HarnessOutcome", "LaunchContext", "LaunchPlan", "adapter_named"]

"""What starts and watches a local stack: `gyre up`, and `LocalStack` for the demo and the tests."""

from workers.supervisor.components import ComponentSpec, fleet_components
from workers.supervisor.journal import StackEvent
from workers.supervisor.stack import LocalStack

__all__ = ["ComponentSpec", "LocalStack", "StackEvent", "fleet_components"]

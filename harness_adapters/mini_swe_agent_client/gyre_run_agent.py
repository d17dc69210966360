"""Start mini-swe-agent through its Python interface, without the terminal user interface that its command imports.

    python gyre_run_agent.py SETTINGS.yaml EXECUTION.yaml

Everything it runs is the harness' own: its settings reader, its agent, its environment. Half the start of `mini`.
"""

import sys

from minisweagent.agents import get_agent  # pyright: ignore[reportMissingImports]
from minisweagent.config import get_config_from_spec  # pyright: ignore[reportMissingImports]
from minisweagent.environments import get_environment  # pyright: ignore[reportMissingImports]
from minisweagent.models import get_model  # pyright: ignore[reportMissingImports]
from minisweagent.utils.serialize import recursive_merge  # pyright: ignore[reportMissingImports]


def main(specs):
    config = recursive_merge(*(get_config_from_spec(spec) for spec in specs))
    model = get_model(config=config["model"])
    environment = get_environment(config.get("environment", {}), default_type="local")
    agent = get_agent(model, environment, config["agent"], default_type="default")
    agent.run(config["run"]["task"])


if __name__ == "__main__":
    main(sys.argv[1:])

"""Install a harness, as the Makefile does:  python -m harness_adapters.install mini-swe-agent --into var/harness"""

import argparse
from pathlib import Path

from harness_adapters.registry import adapter_named


def main() -> None:
    parser = argparse.ArgumentParser(description="Install a harness in an environment of its own.")
    parser.add_argument("name")
    parser.add_argument("--into", type=Path, default=Path("var/harness"))
    arguments = parser.parse_args()
    adapter = adapter_named(arguments.name)
    adapter.install(arguments.into.absolute())
    print(f"{adapter.name} {adapter.version} is installed below {arguments.into}")


if __name__ == "__main__":
    main()

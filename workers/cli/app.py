"""The command line. Each subcommand's module is imported only when it runs, so that `gyre --help` stays quick.

A module ``workers/cli/bench_<name>.py`` with a function `bench` becomes ``gyre bench <name>``.
"""

import os
import pkgutil
import sys
import tomllib
from pathlib import Path

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape

import workers.cli
from workflows.messages.errors import GyreError, InvalidInput

USAGE_ERROR, FAILURE, INTERRUPTED = 2, 1, 130


def build() -> App:
    """The application with all its commands."""
    description = "Elastic reinforcement learning for agents whose single run lasts hours."
    app = App(name="gyre", help=description, version=_version, default_parameter=Parameter(negative=()))
    app.command("workers.cli.up:up", name="up", help="Start and watch a local stack until Ctrl-C.")
    app.command("workers.cli.doctor:doctor", name="doctor", help="Check this machine; each finding names its fix.")
    app.command("workers.cli.status:status", name="status", help="Where a run stands.")
    app.command("workers.cli.ledger:ledger", name="ledger", help="Scheduling decisions, why, and what came of them.")
    app.command("workers.cli.report:report", name="report", help="One page about a run: plots, totals, decisions.")
    app.command("workers.cli.audit:audit", name="audit", help="Re-check a recorded run against the invariants.")
    app.command("workers.cli.tree:tree", name="tree", help="An execution's branches, and which of them are trained.")
    app.command("workers.cli.explain:explain", name="explain", help="Why an execution was, or was not, trained.")
    app.command("workers.cli.replay:replay", name="replay", help="Recompute a batch's gradient and compare it.")
    app.command("workers.cli.simulate:simulate", name="simulate", help="What each policy would do with a workload.")
    app.command("workers.cli.plan:plan", name="plan", help="Which set-up to buy for a budget, and how sure that is.")
    app.command("workers.cli.demo:demo", name="demo", help="The whole loop for real on this machine, with a report.")

    burst = App(name="burst", help="Burst files.")
    burst.command("workers.cli.files:burst_example", name="example", help="Print a valid burst file.")
    burst.command("workers.cli.files:burst_schema", name="schema", help="Print the JSON schema of burst files.")
    burst.command("workers.cli.files:burst_check", name="check", help="Check a burst file; wrong fields are named.")
    app.command(burst)

    campaign = App(name="campaign", help="Campaign files.")
    campaign.command("workers.cli.files:campaign_example", name="example", help="Print a valid campaign file.")
    campaign.command("workers.cli.files:campaign_schema", name="schema", help="Print the JSON schema.")
    campaign.command("workers.cli.files:campaign_check", name="check", help="Check a campaign file.")
    app.command(campaign)

    kept = App(name="checkpoints", help="Checkpoints of a run.")
    kept.command("workers.cli.checkpoints:checkpoints_list", name="list", help="Which there are, and what they bind.")
    kept.command("workers.cli.checkpoints:checkpoints_verify", name="verify", help="Whether they are whole.")
    kept.command("workers.cli.checkpoints:checkpoints_export", name="export", help="One as a Hugging Face folder.")
    app.command(kept)

    harness = App(name="harness", help="Harnesses.")
    harness.command("workers.cli.harness:harness_list", name="list", help="Which there are, pinned and installed.")
    harness.command("workers.cli.harness:harness_install", name="install", help="Install one, in a place of its own.")
    harness.command("workers.cli.harness:harness_try", name="try", help="Run one on a tiny task; show its calls.")
    app.command(harness)

    fleet = App(name="fleet", help="Fleet files.")
    fleet.command("workers.cli.files:fleet_example", name="example", help="Print the default fleet file.")
    fleet.command("workers.cli.files:fleet_check", name="check", help="Check a fleet file; wrong fields are named.")
    app.command(fleet)

    cells = App(name="cells", help="The cells of a running stack.")
    cells.command("workers.cli.cells:cells_show", name="show", help="Which there are, and what moving them costs.")
    cells.command("workers.cli.cells:cells_offer", name="offer", help="Add cells while bursts run.")
    cells.command("workers.cli.cells:cells_reclaim", name="reclaim", help="Take one back while bursts run.")
    app.command(cells)

    bench = App(name="bench", help="Measurements.")
    for module in pkgutil.iter_modules(workers.cli.__path__):
        if module.name.startswith("bench_"):
            name = module.name.removeprefix("bench_").replace("_", "-")
            bench.command(f"workers.cli.{module.name}:bench", name=name, help=_first_line(module.name))
    app.command(bench)
    return app


def _first_line(module: str) -> str:
    """What a command's module says it does, without importing it."""
    with (Path(__file__).parent / f"{module}.py").open() as file:
        line = file.readline().strip().strip('"')
    told = line.partition("`: ")[2] or line
    return told[:1].upper() + told[1:]


def _version() -> str:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    return f"{project['name']} {project['version']}"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exits with 2 for wrong input, 1 for any other failure we understand."""
    try:
        build()(arguments)
    except GyreError as error:
        Console(stderr=True).print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(USAGE_ERROR if isinstance(error, InvalidInput) else FAILURE)
    except BrokenPipeError:
        # `gyre ... | head` has read enough. What is still buffered must not raise again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILURE)
    except OSError as error:
        if error.filename is None:
            raise
        # A file or folder that a person named, or that this machine does not let us use: no fault of the program.
        where = f"{error.filename}: {error.strerror}"
        Console(stderr=True).print(f"[red]error:[/] {escape(where)}", soft_wrap=True, highlight=False)
        sys.exit(FAILURE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)

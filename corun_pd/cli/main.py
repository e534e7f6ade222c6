"""`corun-pd`: the commands, and what an error looks like.

An expected failure (a CorunError) is its message on stderr and exit code 2, with the traceback at
`--log-level debug`. A bug keeps its traceback and exits with 1.
"""

import importlib
import logging
import traceback
from typing import Any, Final

import click

from corun_pd import __version__
from corun_pd.errors import CorunError

__all__ = ["cli", "main"]

#: Where each command is; loaded when it is called, so that none pays for the imports of the others.
COMMANDS: Final = {
    "up": "corun_pd.cli.up:up",
    "router": "corun_pd.cli.roles:router",
    "prefill": "corun_pd.cli.roles:prefill",
    "decode": "corun_pd.cli.roles:decode",
    "colocated": "corun_pd.cli.roles:colocated",
    "standard": "corun_pd.cli.roles:standard",
    "generate": "corun_pd.cli.generate:generate",
    "run-batch": "corun_pd.cli.run_batch:run_batch",
    "describe": "corun_pd.cli.describe:describe",
    "verify": "corun_pd.cli.verify:verify",
    "bench": "corun_pd.cli.bench:bench",
    "profile": "corun_pd.cli.profile:profile",
    "plan": "corun_pd.cli.plan:plan",
    "doctor": "corun_pd.cli.doctor:doctor",
}

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Commands(click.Group):
    """Loads commands by name and turns expected failures into a line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which one meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, if there is one."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except CorunError as error:
            if ctx.params["log_level"] == "debug":
                traceback.print_exception(error)
            click.echo(f"error: {error.message}", err=True)
            ctx.exit(2)


@click.group(cls=Commands)
@click.version_option(__version__)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="What is logged to stderr; debug adds tracebacks to errors.",
)
def cli(log_level: str) -> None:
    """A prefill/decode-disaggregated LLM inference cluster with bit-identical output."""
    logging.basicConfig(level=log_level.upper(), format=LOG_FORMAT)


def main() -> None:
    """The console script."""
    cli(prog_name="corun-pd")


if __name__ == "__main__":
    main()

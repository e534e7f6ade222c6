"""Options that commands share."""

from pathlib import Path

import click

__all__ = ["config_option", "router_option"]

config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="The cluster file (YAML).",
)

router_option = click.option(
    "--router",
    default="127.0.0.1:50051",
    show_default=True,
    metavar="HOST:PORT",
    help="The router's address.",
)

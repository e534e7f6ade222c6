"""`corun-pd doctor`: are the installed packages a set that works?"""

import sys

import click

from corun_pd.cluster.doctor import find_faults
from corun_pd.cluster.packages import NAMES, installed_packages

__all__ = ["doctor"]


@click.command()
def doctor() -> None:
    """Checks versions and combinations of packages that are known to break; exit code 2 names each."""
    packages = installed_packages()
    for name in NAMES:
        click.echo(f"  {name:<14} {packages[name].version if name in packages else '-'}")
    faults = find_faults(packages)
    for fault in faults:
        click.echo(f"fault: {fault}", err=True)
    if faults:
        sys.exit(2)
    click.echo("no faults")

"""`corun-pd generate`: one prompt, one answer."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import click
import orjson

from corun_pd.cli.options import router_option
from corun_pd.client import Client, Delta, GenerationResult, Options, Prompt, Route
from corun_pd.errors import SetupError

__all__ = ["generate"]

INTERRUPTED = 130


@click.command()
@click.argument("prompt", required=False)
@router_option
@click.option("--messages", type=click.Path(path_type=Path), metavar="FILE", help="A chat, as a JSON list.")
@click.option("--max-tokens", type=int, help="The most tokens to generate.")
@click.option("--min-tokens", type=int, help="No end before so many.")
@click.option("--temperature", type=float, help="0 is greedy.")
@click.option("--top-p", type=float)
@click.option("--top-k", type=int)
@click.option("--min-p", type=float)
@click.option("--seed", type=int, help="Without one, the router mints one and returns it.")
@click.option("-n", "n", type=int, help="How many samples.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Ends the answer; may be given again.")
@click.option("--logprobs", type=int, metavar="K", help="With --json: the K likeliest tokens' logprobs.")
@click.option("--presence-penalty", type=float)
@click.option("--frequency-penalty", type=float)
@click.option("--repetition-penalty", type=float)
@click.option("--ignore-eos", is_flag=True, default=None, help="Go on after an end of sequence.")
@click.option("--route", type=click.Choice(Route), help="Which instances may run it.")
@click.option("--timeout-s", type=float, help="How long to wait.")
@click.option("--stream", is_flag=True, help="Print the answer as it comes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --stream, a line for each delta.")
def generate(
    prompt: str | None,
    router: str,
    messages: Path | None,
    timeout_s: float | None,
    stream: bool,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Generates from PROMPT, from --messages, or from what standard input holds.

    Options that are not given stay unset, and the router's defaults hold; 0 is a value.
    """
    if prompt is not None and messages is not None:
        raise click.UsageError("give PROMPT or --messages, not both")
    options: Options = sampling  # type: ignore[assignment]
    if messages is not None:
        options["messages"] = _read_messages(messages)
    elif prompt is None:
        prompt = sys.stdin.read()
    if stream and not as_json and (options.get("n") or 1) > 1:
        raise click.UsageError("samples cannot be printed as they come, all at once; add --json")
    run = _stream if stream else _whole
    try:
        with Client(router) as client:
            run(client, prompt, options, timeout_s, as_json)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _whole(
    client: Client, prompt: Prompt | None, options: Options, timeout_s: float | None, as_json: bool
) -> None:
    result = client.generate(prompt, timeout_s=timeout_s, **options)
    if as_json:
        _echo_json(result, indent=True)
    else:
        for choice in result.choices:
            click.echo(choice.text)


def _stream(
    client: Client, prompt: Prompt | None, options: Options, timeout_s: float | None, as_json: bool
) -> None:
    with client.stream(prompt, timeout_s=timeout_s, **options) as deltas:
        for delta in deltas:
            if as_json:
                _echo_json(delta)
            else:
                click.echo(delta.text, nl=False)
    if not as_json:
        click.echo()


def _read_messages(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise SetupError(f"{path}: is not JSON: {error}") from error


def _echo_json(value: GenerationResult | Delta, indent: bool = False) -> None:
    """As the dataclasses have it; a logprob of -inf, which JSON lacks, is null."""
    option = orjson.OPT_INDENT_2 if indent else 0
    click.echo(orjson.dumps(dataclasses.asdict(value), option=option))

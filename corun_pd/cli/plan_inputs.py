"""What `corun-pd plan` is given, as the planner takes it."""

from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from corun_pd.errors import ConfigError
from corun_pd.planner.load import ClosedLoop, Load, Offline, Online
from corun_pd.planner.traces import (
    Azure,
    BurstGpt,
    Fixed,
    LengthRule,
    OpenAiBatch,
    ShareGpt,
    Synthetic,
    Trace,
    characters_per_token,
    mooncake,
    vllm_timed,
)

__all__ = ["FORMATS", "length_rule", "open_trace", "parse_load", "parse_numbers"]

#: Formats of trace files.
FORMATS: Final = (
    "burstgpt",
    "azure",
    "azure-multimodal",
    "mooncake",
    "vllm-timed",
    "sharegpt",
    "sharegpt-all-turns",
    "openai-batch",
    "synthetic",
)


def open_trace(name: str, source: str, lengths: LengthRule | None, count: int | None) -> Trace:
    """A trace of the format `name`. Synthetic ones take PROMPT/OUTPUT[@RATE] for a source, and a count.

    Raises ConfigError for a text format without a length rule, and for a source that is no such thing.
    """
    path = Path(source)
    match name:
        case "burstgpt":
            return BurstGpt(path)
        case "azure" | "azure-multimodal":
            return Azure(path, multimodal=name == "azure-multimodal")
        case "mooncake":
            return mooncake(path)
        case "vllm-timed":
            return vllm_timed(path)
        case "synthetic":
            return _synthetic(source, count)
    if lengths is None:
        raise ConfigError(f"--format {name} holds text: give --tokenizer or --characters-per-token")
    if name == "openai-batch":
        return OpenAiBatch(path, lengths)
    return ShareGpt(path, lengths, all_turns=name == "sharegpt-all-turns")


def length_rule(tokenizer: Path | None, ratio: float | None) -> LengthRule | None:
    """By a tokenizer.json, or by a ratio; None for neither. Raises ConfigError for both."""
    if tokenizer is None:
        return None if ratio is None else characters_per_token(ratio)
    if ratio is not None:
        raise ConfigError("--tokenizer and --characters-per-token exclude each other")
    try:
        found = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises no narrower class
        raise ConfigError(f"{tokenizer}: no tokenizer.json: {error}") from error
    return LengthRule(
        f"lengths by {tokenizer}", lambda text: len(found.encode(text, add_special_tokens=False).ids)
    )


def parse_load(text: str) -> Load:
    """`offline`, `online`, `online:SPEED` or `closed:IN_FLIGHT`. Raises ConfigError for anything else."""
    kind, _, value = text.partition(":")
    try:
        match kind, bool(value):
            case "offline", False:
                return Offline()
            case "online", _:
                return Online(float(value or 1))
            case "closed", True:
                return ClosedLoop(int(value))
    except ValueError as error:
        raise ConfigError(f"--load {text}: {error}") from error
    raise ConfigError(f"--load {text}: is none of offline, online[:SPEED], closed:IN_FLIGHT")


def parse_numbers(option: str, text: str, count: int | None = None) -> list[int]:
    """Whole numbers with commas between them, `count` of them. Raises ConfigError for anything else."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{option} {text}: is not a list of numbers") from error
    if count is not None and len(found) != count:
        raise ConfigError(f"{option} {text}: takes {count} numbers")
    return found


def _synthetic(source: str, count: int | None) -> Trace:
    lengths, _, rate = source.partition("@")
    prompt, _, output = lengths.partition("/")
    if count is None:
        raise ConfigError("--format synthetic takes --requests")
    try:
        return Synthetic(
            count, Fixed(int(prompt)), Fixed(int(output)), rate_per_s=float(rate) if rate else None
        )
    except ValueError as error:
        raise ConfigError(f"--trace {source}: is not PROMPT/OUTPUT[@RATE]: {error}") from error

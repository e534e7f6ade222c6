"""What a step costs: measured on one machine under one contract, kept as JSON.

Times are in seconds, sizes in bytes. A fixed-shape decode step costs the same whatever its rows do, but
for the KV cache that attention reads; so its cost is a constant of N and a slope over KV tokens. A packed
prefill step is always T tokens; an isolated one depends on the prompt's length.
"""

import functools
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from corun_pd.config import Model, describe_validation
from corun_pd.errors import ConfigError
from corun_pd.planner.curve import Curve
from corun_pd.planner.prefill_cost import IsolatedCost, PackedCost

__all__ = ["Beside", "DecodePoint", "Profile", "RouterCost", "StepCost", "TransferCost", "load_profile"]

PositiveInt = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Slowness = Annotated[float, Field(ge=1, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class StepCost(NamedTuple):
    """A decode step of one N: `base_s`, and for each KV token read `kv_token_s`, for each row `row_s`."""

    base_s: float
    kv_token_s: float
    row_s: float = 0.0


class DecodePoint(Model):
    """A decode step of `slots` rows, padding among them.

    `row_s` is what a row that holds a sequence takes besides: its token's way to the client, where that is on
    the engine's own cores.
    """

    slots: PositiveInt
    base_s: PositiveSeconds
    kv_token_s: Seconds = 0.0
    row_s: Seconds = 0.0


class TransferCost(Model):
    """A KV transfer: a latency, and a link that a decode instance's pulls share."""

    latency_s: Seconds
    bytes_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RouterCost(Model):
    """The router before the engines: it takes `request_s` for each request, one after the other.

    `latency_s` is what the ways between client, router and instance add until the first token is there.
    """

    request_s: Seconds = 0.0
    latency_s: Seconds = 0.0


class Beside(Model):
    """How many times as long as alone a step takes while another instance on its device computes."""

    prefill: Slowness = 1.0
    decode: Slowness = 1.0


class Profile(Model):
    """What one instance costs. Raises pydantic's ValidationError for what cannot be a measurement.

    `fingerprint` is of the `contract` that was measured. Steps are those of an instance that has its device
    to itself, or whose neighbours there are idle; `company` says in words what ran beside it. `beside` is for
    layouts that put several instances on a device, None where that was not measured. `residuals` are the
    largest relative errors of the model on its own measurements, by what was measured; `samples` are these,
    as `planner.fit` takes them. Decode points rise in slots, and a wider step is never faster.
    """

    format_version: Literal[1] = 1
    machine: dict[str, str]
    versions: dict[str, str]
    fingerprint: str
    contract: dict[str, str] = Field(default_factory=dict)
    prefill: Annotated[IsolatedCost | PackedCost, Field(discriminator="mode")]
    decode: Annotated[tuple[DecodePoint, ...], Field(min_length=1)]
    kv_bytes_per_token: PositiveInt
    transfer: TransferCost
    start_up_s: Seconds
    company: str = ""
    beside: Beside | None = None
    router: RouterCost = RouterCost()
    residuals: dict[str, Seconds] = Field(default_factory=dict)
    samples: dict[str, tuple[tuple[float, ...], ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _wider_steps_cost_more(self) -> Self:
        self._base  # noqa: B018 - its making is the check
        return self

    @functools.cached_property
    def _base(self) -> Curve:
        return Curve(tuple(p.slots for p in self.decode), tuple(p.base_s for p in self.decode))

    def decode_step(self, slots: int) -> StepCost:
        """The decode step of N = `slots`. Raises ConfigError beyond what was measured."""
        points = self.decode
        if not points[0].slots <= slots <= points[-1].slots:
            raise ConfigError(
                f"slots: {slots} was not measured; the profile has {points[0].slots} to {points[-1].slots}"
            )
        at = next(i for i, point in enumerate(points) if slots <= point.slots)
        right, left = points[at], points[max(at - 1, 0)]
        part = (slots - left.slots) / (right.slots - left.slots) if right is not left else 0.0
        slope = left.kv_token_s + (right.kv_token_s - left.kv_token_s) * part
        return StepCost(self._base(slots), slope, left.row_s + (right.row_s - left.row_s) * part)

    def scaled(self, prefill: float = 1.0, decode: float = 1.0, transfer: float = 1.0) -> Self:
        """The same with costs taken so many times."""
        points = tuple(
            point.model_copy(
                update={
                    "base_s": point.base_s * decode,
                    "kv_token_s": point.kv_token_s * decode,
                    "row_s": point.row_s * decode,
                }
            )
            for point in self.decode
        )
        link = TransferCost(
            latency_s=self.transfer.latency_s * transfer, bytes_per_s=self.transfer.bytes_per_s / transfer
        )
        fields = self.__dict__ | {"prefill": self.prefill.scaled(prefill), "decode": points, "transfer": link}
        return type(self)(**{name: fields[name] for name in type(self).model_fields})

    def to_json(self) -> str:
        """The profile as `load_profile` reads it."""
        return self.model_dump_json(indent=2) + "\n"


def load_profile(path: Path) -> Profile:
    """Reads a profile. Raises ConfigError that names the file, the place and the value."""
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {describe_validation(error)}") from error

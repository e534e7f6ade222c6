"""Modes by name."""

import pytest

from corun_pd.bench.modes import ABLATION, MODES, mode_named, modes_named
from corun_pd.config import Ablation, EngineConfig
from corun_pd.errors import ConfigError


def test_commas_part_names_and_semicolons_part_names_with_commas() -> None:
    """A single name with a comma is a name too."""
    assert [mode.name for mode in modes_named("standard, packed")] == ["standard", "packed"]
    assert [mode.name for mode in modes_named(";".join(ABLATION))] == list(ABLATION)
    assert [mode.name for mode in modes_named("isolated, Split-KV off")] == ["isolated, Split-KV off"]


def test_a_mode_changes_prefill_what_is_off_and_nothing_else() -> None:
    """Modes are compared at equal settings."""
    config = EngineConfig(slots=17)
    found = mode_named("isolated, Split-KV off").apply(config, 128)
    assert (found.prefill.mode, found.prefill.chunk_tokens) == ("isolated", 128)
    assert set(found.ablate) == {Ablation.FIXED_SHAPE_DECODE, Ablation.SAMPLER_PADDING}
    same = {"prefill": config.prefill, "ablate": config.ablate}
    assert found.model_copy(update=same) == config


def test_triton_is_said_after_the_name() -> None:
    """Alone or beside the compiler; a configured backend stays otherwise."""
    mode = mode_named("packed+triton+compiled").apply(EngineConfig(), 64)
    assert (mode.attention_backend, mode.compile) == ("TRITON_ATTN", True)
    configured = EngineConfig(attention_backend="FLASH_ATTN")
    assert mode_named("packed").apply(configured, 64).attention_backend == "FLASH_ATTN"


def test_compiled_is_said_after_the_name() -> None:
    """And the option for all modes still holds for those without it."""
    assert mode_named("packed+compiled").apply(EngineConfig(), 64).compile
    assert not mode_named("packed").apply(EngineConfig(), 64).compile
    assert mode_named("packed").apply(EngineConfig(compile=True), 64).compile


def test_an_unknown_mode_is_named_with_those_that_are_known() -> None:
    """As are names that only look compiled."""
    with pytest.raises(ConfigError, match=r"'fast\+compiled': not one of standard"):
        modes_named("packed,fast+compiled")


@pytest.mark.parametrize("name", MODES)
def test_every_mode_gives_a_configuration_that_is_valid(name: str) -> None:
    """A copy with changes is not checked when it is made."""
    found = mode_named(name).apply(EngineConfig(), 64)
    assert EngineConfig.model_validate(found.model_dump()) == found

"""docs/sampling.md: every option of the client has a row, and every row names tests that exist."""

import re
from pathlib import Path

from corun_pd.client import Options

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "sampling.md").read_text()

#: No parameters of sampling: the prompt, where it runs, what it is called, whether text is wanted.
OTHERS = {"generation_id", "messages", "route", "tokens_only"}


def rows() -> list[list[str]]:
    """The cells of the table of parameters."""
    table = TEXT.partition("## Parameters")[2].partition("###")[0]
    return [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")][2:]


def test_every_option_has_a_row() -> None:
    """What a client can ask for is in the first column."""
    listed = {name for row in rows() for name in re.findall(r"`(\w+)`", row[0])}
    assert set(Options.__annotations__) - OTHERS - {"seeds"} <= listed


def test_every_row_names_tests_that_exist() -> None:
    """A row without a test is a claim."""
    sources = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    for row in rows():
        assert re.search(r"`test_\w+`", row[-1]), row
    for name in re.findall(r"`(test_\w+)`", TEXT):
        assert f"def {name}(" in sources, name

"""Several files, rows of a program, standard input."""

import io
from pathlib import Path

import pytest

from corun_pd.batch import BatchSource, InputFiles, Refusal
from corun_pd.batch.inputs import InputRows
from corun_pd.batch.spool import spool
from corun_pd.errors import SetupError
from tests.unit.batch.make import SERVED, make_line, write_lines


def test_files_are_one_job_in_their_order(tmp_path: Path) -> None:
    """Indices run on; messages tell the input and its physical line; names of files do not matter."""
    first = write_lines(tmp_path / "a", make_line("1"), "", make_line("2"), "")
    second = write_lines(tmp_path / "b", "", make_line("2"), make_line("3"), "bad")
    inputs = InputFiles(first, second)
    items = list(BatchSource(inputs, SERVED))
    refusals = [item for item in items if isinstance(item, Refusal)]
    assert [item.index for item in refusals] == [2, 4]
    assert (
        str(refusals[0]) == "line 2 of input 2 (custom_id '2'): custom_id: is that of line 3 of input 1, too"
    )
    assert "line 4 of input 2 (no custom_id)" in str(refusals[1])
    digests = inputs.digests
    assert sum(inputs.read()) == first.stat().st_size + second.stat().st_size
    assert inputs.digests == digests
    assert [line.number for line in inputs] == [1, 3, 6, 7, 8]


def test_a_file_named_twice_is_read_twice(tmp_path: Path) -> None:
    """And so its second reading is all refused, line by line, for ids that come again."""
    path = write_lines(tmp_path / "a", make_line("1"))
    assert [isinstance(item, Refusal) for item in BatchSource(InputFiles(path, path), SERVED)] == [
        False,
        True,
    ]


def test_rows_of_a_program_are_lines(tmp_path: Path) -> None:
    """The same requests as a file's, seeds and all."""
    rows = [make_line("1"), make_line("2", temperature=float("nan")), make_line("3", prompt="\ud800")]
    path = write_lines(tmp_path / "in", *rows)
    assert [str(item) for item in BatchSource(InputRows(iter(rows)), SERVED)] == [
        str(item) for item in BatchSource(path, SERVED)
    ]


def test_standard_input_is_kept_for_a_restart(tmp_path: Path) -> None:
    """The same again and none at all go on; another is refused, unless the job is to start over."""
    out = tmp_path / "out.jsonl"
    path = spool(io.BytesIO(b"one"), out, start_over=False)
    assert path.read_bytes() == b"one"
    for again in (b"one", b""):
        assert spool(io.BytesIO(again), out, start_over=False) == path
        assert path.read_bytes() == b"one"
    with pytest.raises(SetupError, match="another than that of the job"):
        spool(io.BytesIO(b"two"), out, start_over=False)
    assert path.read_bytes() == b"one"
    assert spool(io.BytesIO(b"two"), out, start_over=True).read_bytes() == b"two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl.stdin"]

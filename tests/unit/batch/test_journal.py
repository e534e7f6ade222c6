"""The journal: what a stop at any byte leaves, and what is refused."""

import math
import os
from pathlib import Path

import pytest

from corun_pd.batch.frames import MAGIC
from corun_pd.batch.journal import Checked, Entry, Journal, Receipt
from corun_pd.batch.reader import RawLine
from corun_pd.batch.report import Measure
from corun_pd.errors import ContractMismatch, SetupError

HEADER = {"seed": "0", "fingerprint": '"f"'}


def ignore(measure: Measure) -> None:
    """Counts nothing."""


def make_journal(path: Path, answers: int) -> Journal:
    """A checked one with that many answers."""
    journal = Journal.create(path, HEADER)
    journal.append(Entry(0, 7, Measure(400), b"refused\n"))
    journal.mark_checked(Checked(1 + answers, 1))
    for index in range(1, 1 + answers):
        journal.append(Entry(index, 7, Measure(200, 3, index, 7, 0.5, math.nan), b"answer %d\n" % index))
    return journal


def reopen(path: Path) -> tuple[Journal, list[Measure]]:
    """The journal of a next run, and what it counted."""
    measures: list[Measure] = []
    journal = Journal.open(path, measures.append)
    assert journal is not None
    return journal, measures


def test_what_was_recorded_is_there_again(tmp_path: Path) -> None:
    """Answers by line, in whatever order they came, with what they came to."""
    path = tmp_path / "j"
    journal = make_journal(path, 3)
    journal.append(Entry(9000, 7, Measure(200, 1, 2), b"far ahead\n"))
    journal.close()
    journal, measures = reopen(path)
    assert (journal.header, journal.checked, journal.cut_bytes) == (HEADER, Checked(4, 1), 0)
    assert [journal.is_finished(index) for index in (0, 3, 4, 8999, 9000, 9001)] == [
        True, True, False, False, True, False,
    ]  # fmt: skip
    assert journal.read(2).data == b"answer 2\n"
    entry = journal.read(9000)
    measure = entry.measure
    assert (measure.completion_tokens, entry.data) == (2, b"far ahead\n")
    assert math.isnan(measure.first_token_s)
    assert [measure.status for measure in measures] == [400, 200, 200, 200, 200]
    assert sum(measure.completion_tokens for measure in measures) == 1 + 2 + 3 + 2
    assert [measure.first_token_s for measure in measures[1:4]] == [0.5] * 3
    journal.close()


def test_an_answer_belongs_to_what_its_line_said(tmp_path: Path) -> None:
    """An input that changed while the job ran, and was put back, is not taken for the same."""
    journal = make_journal(tmp_path / "j", 0)
    line = RawLine(1, 2, b"what it said")
    assert not journal.has(line)
    journal.append(Entry(1, line.crc, Measure(200), b"answer\n"))
    assert journal.has(line)
    with pytest.raises(SetupError, match="other content of line 2"):
        journal.has(RawLine(1, 2, b"another"))
    journal.close()


def test_a_stop_at_any_byte_loses_nothing_before_it(tmp_path: Path) -> None:
    """Cut at every length: whole frames stay, the torn end goes and is told, and appending goes on."""
    path, torn = tmp_path / "j", tmp_path / "torn"
    make_journal(path, 3).close()
    data = path.read_bytes()
    whole = 0
    for size in range(data.index(b"refused"), len(data)):
        torn.write_bytes(data[:size])
        journal, measures = reopen(torn)
        answers = len(measures) if journal.checked else 0
        assert answers >= whole
        whole = answers
        kept = size - journal.cut_bytes
        assert 0 <= journal.cut_bytes < 70
        assert (torn.stat().st_size == kept) or journal.checked is None
        if journal.checked is not None and not journal.is_finished(3):
            journal.append(Entry(3, 7, Measure(200), b"again\n"))
            journal.close()
            journal, _ = reopen(torn)
            assert journal.cut_bytes == 0
            assert journal.read(3).data == b"again\n"
        journal.close()
    assert whole == 3


def test_a_flipped_byte_ends_what_is_believed(tmp_path: Path) -> None:
    """Nothing that fails its checksum is taken, and nothing after it."""
    path = tmp_path / "j"
    make_journal(path, 3).close()
    data = bytearray(path.read_bytes())
    data[data.index(b"answer 2")] ^= 1
    path.write_bytes(data)
    journal, _ = reopen(path)
    assert [journal.is_finished(index) for index in range(4)] == [True, True, False, False]
    assert journal.cut_bytes > 0
    journal.close()


def test_damage_while_a_job_runs_is_noticed(tmp_path: Path) -> None:
    """An answer is checked again when it goes to the output."""
    path = tmp_path / "j"
    journal = make_journal(path, 1)
    data = path.read_bytes()
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"A", data.index(b"answer 1"))
    with pytest.raises(SetupError, match="damaged at byte"):
        journal.read(1)
    journal.close()


def test_refusals_of_a_check_that_did_not_end_are_dropped(tmp_path: Path) -> None:
    """Whether more bad lines follow is not known, so the check is made again."""
    path, stopped = tmp_path / "j", tmp_path / "stopped"
    journal = Journal.create(path, HEADER)
    size = path.stat().st_size
    journal.append(Entry(0, 7, Measure(400), b"refused\n"))
    stopped.write_bytes(path.read_bytes())
    journal.close()
    assert not path.exists()
    journal, _ = reopen(stopped)
    assert journal.checked is None
    assert not journal.is_finished(0)
    assert stopped.stat().st_size == size
    journal.close()


def test_accidents_are_not_finished(tmp_path: Path) -> None:
    """A line that the fleet failed on runs again, and its second answer counts alone."""
    path = tmp_path / "j"
    journal = make_journal(path, 0)
    journal.append(Entry(1, 7, Measure(500), b"accident\n"))
    assert journal.is_finished(1)  # for this run
    journal.close()
    journal, measures = reopen(path)
    assert [measure.status for measure in measures] == [400]
    assert not journal.is_finished(1)
    journal.append(Entry(1, 7, Measure(200), b"answer\n"))
    journal.close()
    journal, measures = reopen(path)
    assert [measure.status for measure in measures] == [400, 200]
    assert journal.read(1).data == b"answer\n"
    journal.close()


def test_a_sealed_journal_holds_a_receipt_alone(tmp_path: Path) -> None:
    """The answers are in the output; what is left is small."""
    path = tmp_path / "j"
    journal = make_journal(path, 100)
    receipt = Receipt("aa", "bb", {"line_count": 101})
    journal.seal(receipt)
    journal.close()
    assert path.stat().st_size < 300
    journal, measures = reopen(path)
    assert (journal.receipt, measures, journal.cut_bytes) == (receipt, [], 0)
    journal.close()


def test_a_journal_of_another_job_is_refused_by_what_differs(tmp_path: Path) -> None:
    """All that differs, and how to go on."""
    journal = make_journal(tmp_path / "j", 0)
    journal.require(dict(HEADER))
    with pytest.raises(ContractMismatch, match="accept-new-contract") as caught:
        journal.require({"seed": "1", "route": "null", "fingerprint": '"f"'})
    assert caught.value.differences == {"seed": ("0", "1"), "route": ("absent", "null")}
    journal.close()


@pytest.mark.parametrize("data", [b"", b"some file of mine", MAGIC, MAGIC + b"\0" * 9])
def test_what_is_no_journal_is_left_alone(tmp_path: Path, data: bytes) -> None:
    """A file of that name that we did not write whole is not ours to cut."""
    path = tmp_path / "j"
    path.write_bytes(data)
    with pytest.raises(SetupError, match="remove it"):
        Journal.open(path, ignore)
    assert path.read_bytes() == data
    assert Journal.open(tmp_path / "absent", ignore) is None

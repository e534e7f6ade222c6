"""CSV traces: BurstGPT (C25) and Azure."""

import gzip
from pathlib import Path

import pytest

from corun_pd.errors import SetupError
from corun_pd.planner.traces import Azure, BurstGpt, Drop, Note, TraceRequest, take
from tests.unit.planner.make import EIGHT, SIX, read, write

ROWS = [
    "3,ChatGPT,512,64,576,Conversation log",
    "17,GPT-4,1301,208,1509,API log",
    "17,ChatGPT,88,0,88,API log",
    "42,GPT-4,0,0,0,API log",
]


def test_failed_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    """No answer, and neither prompt nor answer, are different faults."""
    trace = BurstGpt(write(tmp_path / "b.csv", SIX, *ROWS))
    assert read(trace) == [TraceRequest(0.0, 512, 64), TraceRequest(14.0, 1301, 208)]
    assert trace.report.dropped == {Drop.FAILED: 1, Drop.NO_PROMPT: 1}


def test_failed_rows_are_kept_by_a_stated_rule(tmp_path: Path) -> None:
    """Their prompts were load; they count as one token, and are noted."""
    trace = BurstGpt(write(tmp_path / "b.csv", SIX, *ROWS), keep_failed=True)
    assert read(trace)[2] == TraceRequest(14.0, 88, 1)
    assert trace.report.notes == {Note.FAILED: 1}
    assert trace.report.dropped == {Drop.NO_PROMPT: 1}


def test_eight_columns_are_read_by_name(tmp_path: Path) -> None:
    """Elapsed time is no length; an empty session is no fault; time starts at zero."""
    trace = BurstGpt(
        write(
            tmp_path / "b.csv",
            EIGHT,
            "19500007.0,3f0c2a1e-5b6d-4c7f-8a90-0123456789ab,12,GPT-4,640,151,791,Conversation log",
            "19500011.5,,2,ChatGPT,47,30,77,API log",
        )
    )
    assert read(trace) == [TraceRequest(0.0, 640, 151), TraceRequest(4.5, 47, 30)]
    assert not trace.report.dropped


def test_lfs_pointer_is_named_as_such(tmp_path: Path) -> None:
    """A clone without LFS has three lines of text in the place of the data."""
    path = write(tmp_path / "b.csv", "version https://git-lfs.github.com/spec/v1", "oid sha256:0", "size 1")
    with pytest.raises(SetupError, match="Git LFS pointer"):
        read(BurstGpt(path))


def test_wrong_total_is_reported(tmp_path: Path) -> None:
    """Prompt and output are believed, and the plan shows how often the total was another."""
    trace = BurstGpt(write(tmp_path / "b.csv", SIX, "3,GPT-4,512,64,600,API log"))
    assert read(trace) == [TraceRequest(0.0, 512, 64)]
    assert trace.report.notes == {Note.WRONG_TOTAL: 1}


def test_more_requests_than_rows_is_an_error(tmp_path: Path) -> None:
    """Never a silent resample."""
    trace = BurstGpt(write(tmp_path / "b.csv", SIX, *ROWS))
    assert len(list(take(trace, 2))) == 2
    with pytest.raises(SetupError, match="3 requests asked for and 2 there"):
        list(take(trace, 3))


def test_repetition_is_asked_for_and_goes_on_in_time(tmp_path: Path) -> None:
    """A second pass starts a mean gap after the end of the first."""
    trace = BurstGpt(write(tmp_path / "b.csv", SIX, *ROWS))
    times = [request.arrival_s for request in take(trace, 5, repeat=True)]
    assert times == [0.0, 14.0, 28.0, 42.0, 56.0]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("3,GPT-4,many,64,576,API log", Drop.NOT_A_NUMBER),
        ("nan,GPT-4,512,64,576,API log", Drop.NOT_A_NUMBER),
        ("3,GPT-4,-1,64,63,API log", Drop.NEGATIVE),
        ("3,GPT-4,512", Drop.SHORT),
    ],
)
def test_broken_rows_are_dropped_by_reason(tmp_path: Path, row: str, reason: Drop) -> None:
    """The good rows around them are read."""
    trace = BurstGpt(write(tmp_path / "b.csv", SIX, ROWS[0], row, "", ROWS[1]))
    assert len(read(trace)) == 2
    assert trace.report.dropped == {reason: 1}


def test_missing_column_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Another file is not read by position."""
    path = write(tmp_path / "b.csv", SIX.replace("Response tokens", "Output"), *ROWS)
    with pytest.raises(SetupError, match="no column 'Response tokens'; it has Timestamp, Model"):
        read(BurstGpt(path))


def test_file_without_a_usable_row_is_an_error_with_reasons(tmp_path: Path) -> None:
    """An empty plan would look like a fast one."""
    with pytest.raises(SetupError, match="dropped 1: failed"):
        read(BurstGpt(write(tmp_path / "b.csv", SIX, ROWS[2])))


def test_time_never_goes_back(tmp_path: Path) -> None:
    """A stamp before the one above is taken as equal to it, and counted."""
    rows = [f"{stamp},GPT-4,1,1,2,API log" for stamp in (10, 30, 20, 40)]
    trace = BurstGpt(write(tmp_path / "b.csv", SIX, *rows))
    assert [request.arrival_s for request in read(trace)] == [0.0, 20.0, 20.0, 30.0]
    assert trace.report.notes == {Note.BACKWARDS: 1}


@pytest.mark.parametrize(
    "stamps",
    [
        ("2023-11-16 23:59:59.9234500", "2023-11-17 00:00:01.1734500"),
        ("2024-05-12 00:00:00.000000+00:00", "2024-05-12 02:00:01.250000+02:00"),
    ],
)
def test_azure_stamps_are_read_with_and_without_offset(tmp_path: Path, stamps: tuple[str, str]) -> None:
    """Seven digits, midnight, offsets: 1.25 seconds apart."""
    first, second = stamps
    path = write(
        tmp_path / "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", f"{first},2048,17", f"{second},96,240"
    )
    assert read(Azure(path)) == [TraceRequest(0.0, 2048, 17), TraceRequest(1.25, 96, 240)]


def test_azure_multimodal_file_is_read_from_gzip_and_notes_images(tmp_path: Path) -> None:
    """The new column stands second, and lengths are found all the same."""
    text = (
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-10-16 08:00:00.0400000,0,512,80\n2024-10-16 08:00:00.9100000,2,3100,45\n"
    )
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    trace = Azure(path, multimodal=True)
    assert read(trace) == [TraceRequest(0.0, 512, 80), TraceRequest(0.87, 3100, 45)]
    assert trace.report.notes == {Note.IMAGES: 1}


def test_cut_gzip_is_an_error_and_not_a_short_trace(tmp_path: Path) -> None:
    """Half a download is not half a workload."""
    data = gzip.compress("\n".join([SIX, *ROWS * 1000]).encode())
    path = tmp_path / "b.csv.gz"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(SetupError, match=r"b\.csv\.gz"):
        read(BurstGpt(path))

"""Whether a job goes on, begins, or must not: what its output's journal says."""

import json
from collections.abc import Callable
from functools import partial

from corun_pd.batch.journal import Journal, Receipt, journal_path
from corun_pd.batch.output import OutputFiles
from corun_pd.batch.report import Tally
from corun_pd.batch.source import Served
from corun_pd.client import Route
from corun_pd.errors import ContractMismatch, SetupError

__all__ = ["job_header", "open_journal"]


def job_header(served: Served, digests: tuple[str, ...], seed: int, route: Route | None) -> dict[str, str]:
    """What a job is, each value as JSON. `contract.*` says which settings differ when fingerprints do."""
    return {
        "fingerprint": json.dumps(served.fingerprint),
        "inputs": json.dumps(digests),
        "model": json.dumps(served.models[0]),
        "route": json.dumps(route),
        "seed": json.dumps(seed),
        **{f"contract.{name}": value for name, value in served.settings.items()},
    }


def open_journal(
    files: OutputFiles, header: dict[str, str], *, start_over: bool, say: Callable[[str], None]
) -> tuple[Journal, Tally]:
    """The journal of the job that `header` tells, and the count of what it holds; new when there is none.

    One of another job is refused with ContractMismatch, or dropped when `start_over`. One that has ended
    holds a receipt; its files must be there (else the job starts over) and as it wrote them (SetupError).
    """
    path = journal_path(files.out.path)
    tally = Tally()
    journal = Journal.open(path, partial(tally.add, resumed=True))
    if journal is not None:
        try:
            if _goes_on(journal, files, header, start_over=start_over, say=say):
                if journal.receipt is not None:
                    tally = Tally.of_ended(journal.receipt.counts)
                return journal, tally
        except BaseException:
            journal.close()
            raise
        journal.close()
    return Journal.create(path, header), Tally()


def _goes_on(
    journal: Journal,
    files: OutputFiles,
    header: dict[str, str],
    *,
    start_over: bool,
    say: Callable[[str], None],
) -> bool:
    if journal.cut_bytes:
        say(f"{journal.path}: repaired; a stop had torn its last {journal.cut_bytes} bytes")
    if journal.checked is None and journal.receipt is None:
        return False  # no line of it was run
    try:
        journal.require(header)
    except ContractMismatch as error:
        if not start_over:
            raise
        say(f"starting over: {error}")
        return False
    if journal.receipt is None:
        return True
    if not _is_whole(files, journal.receipt):
        say(f"starting over: {files.out.path} or {files.errors.path} is gone")
        return False
    say(f"{files.out.path}: the job has ended; nothing is left to do")
    return True


def _is_whole(files: OutputFiles, receipt: Receipt) -> bool:
    found = [files.out.digest(), files.errors.digest()]
    if None in found:
        return False
    if found != [receipt.output_sha256, receipt.errors_sha256]:
        raise SetupError(f"{files.out.path}: is not what its job wrote; move it away, and the job runs anew")
    return True

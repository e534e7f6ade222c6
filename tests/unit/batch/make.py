"""Batch lines and files for tests."""

import json
from pathlib import Path
from typing import Any

from corun_pd.batch import BatchSource, Refusal, Served, Work

SERVED = Served("f" * 64, ("tiny", "models/tiny"), slots=4)


def make_line(custom_id: object = "a", *, chat: bool = False, **body: Any) -> dict[str, Any]:
    """A good line; `body` adds to its body or replaces what is there."""
    base: dict[str, Any] = {"model": "tiny"}
    base |= {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "hi"}
    url = "/v1/chat/completions" if chat else "/v1/completions"
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": base | body}


def write_lines(path: Path, *lines: dict[str, Any] | str) -> Path:
    """A file of lines; text is written as it is."""
    rows = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def read_items(path: Path, *lines: dict[str, Any] | str, seed: int = 0) -> list[Work | Refusal]:
    """What a source makes of them."""
    return list(BatchSource(write_lines(path, *lines), SERVED, seed=seed))

"""Reading a journal from where the last reading stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_BYTES = 2**22


def read_from(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The whole lines after `offset` bytes, at most some 4 MiB of them, and the offset behind them.

    A last line that is still being written is left for the next time; one that a crash cut is passed over.
    """
    if not path.is_file():
        return [], offset
    with open(path, "rb") as journal:
        journal.seek(offset)
        content = journal.read(_BYTES)
    whole = content[: content.rfind(b"\n") + 1]
    entries = []
    for line in whole.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries, offset + len(whole)

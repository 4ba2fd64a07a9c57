"""Temporary folders for variants that run for somebody else, and the removal of what killed processes left.

They lie below NOAM_SCRATCH, or else the system's temporary folder, which many machines may share. A name has the host,
the process and the time at which that began, so that those of living ones are left alone.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from stages.errors import LabError

_PREFIX = "noam-variant"
_NAME = re.compile(rf"{_PREFIX}@(?P<host>[^@]*)@(?P<pid>\d+)@(?P<created>\d+)@[0-9a-f]+")


def root() -> Path:
    """Where such folders lie."""
    return Path(os.environ.get("NOAM_SCRATCH") or tempfile.gettempdir()).absolute()


@contextmanager
def folder() -> Iterator[Path]:
    """A new one, of this process and readable by this user alone; removed at the end.

    Raises:
        LabError: it cannot be made.
    """
    process = psutil.Process()
    made = root() / f"{_PREFIX}@{_host()}@{process.pid}@{int(process.create_time())}@{uuid.uuid4().hex[:8]}"
    try:
        made.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise LabError(f"{made.parent}: no folder for a variant can be made there ({error.strerror})") from None
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def remove_leftovers() -> int:
    """Remove the folders of processes of this machine and user that are no more; how many."""
    removed = 0
    for path in root().glob(f"{_PREFIX}@*"):
        found = _NAME.fullmatch(path.name)
        try:
            ours = found is not None and found["host"] == _host() and path.lstat().st_uid == os.getuid()
        except OSError:  # somebody was faster
            continue
        if found is not None and ours and not _alive(int(found["pid"]), int(found["created"])):
            shutil.rmtree(path, ignore_errors=True)
            removed += 1
    return removed


def _host() -> str:
    return platform.node().replace("@", "-").replace("/", "-")


def _alive(pid: int, created: int) -> bool:
    try:
        process = psutil.Process(pid)
        return int(process.create_time()) == created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False

"""The follower's footprint: who it is, and how to stop it. Knows no MLflow, so that anybody may ask."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil

from stages import files
from stages.execution import Execution, Process

_PATIENCE = 2.0


def sign_in(execution: Execution) -> None:
    """Called by a follower when it starts."""
    me = Process.of(psutil.Process())
    files.write_text(_file(execution), me.model_dump_json() + "\n")


def is_signed_in(execution: Execution) -> bool:
    """No later follower has signed in."""
    follower = _read(execution)
    return follower is not None and follower.pid == os.getpid()


def sign_out(execution: Execution) -> None:
    """Called by a follower when it ends."""
    if is_signed_in(execution):
        _file(execution).unlink(missing_ok=True)


def stop_follower(execution: Execution) -> None:
    """End the follower of an execution, if it lives; what it was sending will be sent again.

    A follower that is making the database finishes that first, and whoever needs the database waits for its lock.
    """
    follower = _read(execution)
    if follower is None or not follower.alive():
        return
    with suppress(psutil.Error):
        process = psutil.Process(follower.pid)
        process.send_signal(signal.SIGTERM)
        with suppress(psutil.TimeoutExpired):
            process.wait(_PATIENCE)


def _file(execution: Execution) -> Path:
    return execution.folder / "follower.json"


def _read(execution: Execution) -> Process | None:
    try:
        return Process.model_validate_json(_file(execution).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None

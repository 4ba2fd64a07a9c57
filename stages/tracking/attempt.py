"""A sync in a process of its own, which is ended when the store hangs: a pipeline never waits for MLflow.

The limit is on *silence*, not on the whole: a long upload that gets ahead may take its time.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

SILENCE_SECONDS = 6.0
_BUSY_SECONDS = 0.2  # of processor time: it computes (imports, builds, compresses), so it does not hang


def attempt(arguments: Sequence[str], log: Path, silence: float = SILENCE_SECONDS) -> tuple[bool, str]:
    """Run `python -m stages.tracking.sync` with these arguments.

    Args:
        arguments: of the command.
        log: file for what MLflow has to say.
        silence: seconds without progress after which the process is ended.

    Returns:
        (True, a note for the user or "") or (False, the reason in one line).
    """
    with open(log, "ab") as chatter:
        process = subprocess.Popen(
            [sys.executable, "-m", "stages.tracking.sync", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=chatter,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        return _watch(process, silence, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _watch(process: subprocess.Popen[bytes], silence: float, log: Path) -> tuple[bool, str]:
    """Read the process's lines until it ends or falls silent."""
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=_pump, args=(process, lines), daemon=True).start()
    done: str | None = None
    problem = f"MLflow failed, see {log}"
    heard, busy = time.monotonic(), 0.0
    while True:
        try:
            line = lines.get(timeout=0.25)
        except queue.Empty:
            now = _processor_seconds(process.pid)
            if now - busy > _BUSY_SECONDS:
                heard, busy = time.monotonic(), now
            if time.monotonic() - heard > silence:
                return done is not None, done if done is not None else f"no answer for {silence:.0f} s"
            continue
        if line is None:
            return done is not None, done if done is not None else problem
        heard = time.monotonic()
        message = json.loads(line)
        done = message.get("done", done)
        problem = message.get("error", problem)


def _pump(process: subprocess.Popen[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    for line in process.stdout or ():
        lines.put(line)
    lines.put(None)


def _processor_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)

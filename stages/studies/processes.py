"""Work in a process of its own: another folder, its output in a file, and an exit code for its outcome."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path

from stages.errors import LabError


def start(work: Callable[[], None], folder: Path, log: Path) -> ForkProcess:
    """A fork of this process that does some work in a folder; it ends with 0, or with 1 and last words in `log`."""
    process = multiprocessing.get_context("fork").Process(target=_do, args=(work, folder, log))
    process.start()
    return process


def last_words(log: Path) -> str:
    """What a process said at its end."""
    content = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line for line in content.splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "ended without a word"


def end_by_signals() -> None:
    """This process has nothing to save."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _do(work: Callable[[], None], folder: Path, log: Path) -> None:
    end_by_signals()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(folder)
    code = 1
    try:
        work()
        code = 0
    except LabError as error:
        print(f"error: {error}")
    except Exception:
        traceback.print_exc(file=sys.stdout)
    finally:
        sys.stdout.flush()
        os._exit(code)  # the parent's exit handlers are the parent's

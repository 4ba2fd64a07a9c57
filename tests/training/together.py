"""Trains runs by several processes each and says what came of them: `python -m tests.training.together RUNS`.

RUNS is a JSON list; an entry has the settings of a run, and `stop_after` where it is to be told to stop after so many
updates and then started again, with `and_then` changed. A line of JSON is printed for each.
"""

from __future__ import annotations

import stages.numerics  # noqa: F401  # isort: skip (before NumPy)
import hashlib
import json
import os
import shutil
import signal
import sys
from typing import Any

from stages.execution import Execution
from stages.training.launch import Watcher
from stages.training.processes import run_processes
from stages.training.records import Record
from stages.training.runs import Outcome, Stop, Task
from tests.training.small import bytes_of
from tests.training.tasks import SPLITS, outcome_of, task


class Told(Watcher):
    """Keeps what it is told, and asks for an end after some updates."""

    def __init__(self, stop_after: int = 0) -> None:
        self.updates, self.begun, self._stop_after = 0, -1, stop_after
        self.others: list[str] = []

    def started(self, execution: Execution, step: int) -> None:
        self.begun = step
        self._count(0)

    def progress(self, updates: int) -> None:
        self._count(updates)

    def record(self, record: Record) -> None:
        self.others.append(type(record).__name__)

    def _count(self, updates: int) -> None:
        self.updates += updates
        if self._stop_after and self.begun >= 0:
            os.kill(os.getpid(), signal.SIGTERM)
            self._stop_after = 0


def digest(tensors: Any) -> str:
    return hashlib.sha256(b"".join(bytes_of(tensors).values())).hexdigest()


def trained(one: Task, stop_after: int = 0) -> tuple[Told, Outcome | None]:
    """A run by as many processes as it asks for; no outcome where it was stopped."""
    told = Told(stop_after)
    if one.settings.processes == 1:
        return told, outcome_of(one)
    try:
        with Stop() as stop:
            folder = run_processes(one, SPLITS, stop, told)
    except KeyboardInterrupt:
        return told, None
    return told, Outcome.read(folder, one.inputs)


def main() -> None:
    for run in json.loads(sys.argv[1]):
        stop_after, and_then = run.pop("stop_after", 0), run.pop("and_then", {})
        shutil.rmtree(".runstate", ignore_errors=True)
        told, outcome = trained(task(**run), stop_after)
        first = told.begun
        if stop_after:
            assert outcome is None, "it was to be stopped on its way"
            told, outcome = trained(task(**run | and_then))
        assert outcome is not None
        found = {
            "losses": [update.loss for update in outcome.updates],
            "norms": [update.grad_norm for update in outcome.updates],
            "rates": [update.lr for update in outcome.updates],
            "validations": [one.loss for one in outcome.validations],
            "divergence": str(outcome.divergence or ""),
            "weights": digest(outcome.weights),
            "snapshots": {
                step: hashlib.sha256(path.read_bytes()).hexdigest() for step, path in outcome.snapshots.items()
            },
            "told": {"updates": told.updates, "begun": [first, told.begun], "others": told.others},
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

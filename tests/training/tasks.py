"""Runs to be made, and what became of them, for tests that also start them in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from stages.execution import Execution
from stages.params import IN_LAST_DIGITS, WITHOUT_EFFECT, Params
from stages.training.records import Record
from stages.training.runs import Listener, Outcome, Stop, Task, run_task
from tests.conftest import ROOT
from tests.training.small import HELD_OUT, VOCABULARY, bytes_of, settings, splits

SPLITS = splits(held_out=HELD_OUT)


def task(seed: int = 0, parent: str = "", **changes: Any) -> Task:
    """A run of the small text with these settings."""
    chosen = settings(**changes, seed=seed)
    inputs = chosen.model_dump(exclude={*WITHOUT_EFFECT, *IN_LAST_DIGITS})
    everything = Params().model_dump() | chosen.model_dump()
    return Task(chosen, inputs, VOCABULARY, everything, {"torch": "2"}, parent)


class Heard(Listener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.executions: list[tuple[str, int]] = []
        self.records: list[Record] = []

    def started(self, execution: Execution, step: int) -> None:
        self.executions.append((execution.id, step))

    def record(self, record: Record) -> None:
        self.records.append(record)


def outcome_of(one: Task, listener: Listener | None = None) -> Outcome:
    """Run it to its end, in this process."""
    with Stop() as stop:
        checkpoint = run_task(one, SPLITS, stop, listener or Listener())
    checkpoint.release()
    return Outcome.read(checkpoint.folder, one.inputs)


def content_of(outcome: Outcome) -> tuple[Any, ...]:
    """All of it, in a form that compares."""
    kept = {step: path.read_bytes() for step, path in outcome.snapshots.items()}
    return bytes_of(outcome.weights), outcome.updates, outcome.validations, outcome.divergence, kept


def logged(execution: Execution) -> list[tuple[int, str, float]]:
    """Each metric of a journal, in order: step, name, value."""
    return [(entry["s"], name, value) for entry in execution.entries() for name, value in entry.get("m", {}).items()]


def python(script: str, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a script in the current folder, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=timeout, env=environment()
    )


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}

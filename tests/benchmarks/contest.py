"""Contenders that take turns, and what their turns say.

Each contender is a process of its own (what torch and its math library settle once a process can then differ), started
and warmed up once. Then they take turns, A B C A B C …, one at a time while the others wait. A ratio is taken within
each round, where both sides saw the same machine, and its median over the rounds is what is reported.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_FOREIGN = (
    "OMP_",
    "MKL_",
    "KMP_",
    "ATEN_",
    "ONEDNN_",
    "DNNL_",
    "OPENBLAS_",
    "TORCH",
    "PYTORCH",
    "NOAM_",
    "DVC_",
    "MLFLOW_",
)


@dataclass(frozen=True)
class Turn:
    """One turn: seconds on the clock and of all cores together, and the work done in them."""

    wall: float
    cpu: float
    updates: int
    tokens: float
    peak_bytes: int = 0


@dataclass(frozen=True)
class Entry:
    """Who takes part: a kind of contender, its arguments, and how many pieces of work a turn and the warm-up have."""

    kind: str
    pieces: int
    warmup: int
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a contest found out: the turns of each contender and the seconds until its first update was done.

    `failures` has a line for each contender that could not take part.
    """

    turns: dict[str, list[Turn]]
    first: dict[str, float]
    failures: dict[str, str]


@dataclass(frozen=True)
class Spread:
    """A median between its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


def paired_ratios(base: Sequence[Turn], other: Sequence[Turn], what: str = "wall") -> list[float]:
    """How many times less of `what` ('wall' or 'cpu') than the base the other took for an update, round by round."""
    return [(getattr(a, what) / a.updates) / (getattr(b, what) / b.updates) for a, b in zip(base, other, strict=True)]


class ContenderError(Exception):
    """A contender's process ended by itself; the text is the last line that it wrote."""


class Contender:
    """A process that does pieces of work when it is asked to."""

    def __init__(self, entry: Entry, folder: Path | None = None, **environment: str) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.contender", entry.kind]
        command += ["--arguments", json.dumps(dict(entry.arguments)), "--warmup", str(entry.warmup)]
        command += ["--folder", str(folder)] if folder else []
        self._errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8")  # noqa: SIM115 (closed in __exit__)
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=clean_environment() | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.stdin.close()
        if kind is not None:
            self._process.terminate()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def wait_until_ready(self) -> float:
        """Wait for the end of the warm-up.

        Returns:
            Seconds from the start of the work, after the imports, to the end of the first piece.
        """
        return float(self._reply()["first"])

    def turn(self, pieces: int) -> Turn:
        """Have so many pieces of work done."""
        print(pieces, file=self._process.stdin, flush=True)
        return Turn(**self._reply())

    def _reply(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().strip() or f"ended with {self._process.returncode}"
            print(said, file=sys.stderr)
            raise ContenderError(said.splitlines()[-1])
        reply: dict[str, Any] = json.loads(line)
        return reply


def clean_environment() -> dict[str, str]:
    """This process's environment without what would choose threads, kernels or stores for a contender."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}


def contest(entries: Mapping[str, Entry], rounds: int, folder: Path | None = None, **environment: str) -> Outcome:
    """Start all of them one after the other, then let them take turns."""
    outcome = Outcome({}, {}, {})
    with ExitStack() as stack:
        ready: dict[str, Contender] = {}
        for name, entry in entries.items():
            contender = stack.enter_context(Contender(entry, folder, **environment))
            try:
                outcome.first[name] = contender.wait_until_ready()
                ready[name] = contender
            except ContenderError as error:
                outcome.failures[name] = str(error)
        for _ in range(rounds):
            for name, contender in ready.items():
                outcome.turns.setdefault(name, []).append(contender.turn(entries[name].pieces))
    return outcome

"""A variant on its way through a study, and the account of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from stages.execution import Execution
from stages.studies import done
from stages.studies.plan import Variant
from stages.training.checkpoint import Checkpoint
from stages.training.kept import about
from stages.training.records import Divergence
from stages.training.replicas import GroupListener
from stages.training.runs import Task

Say = Callable[[str], None]
_LINES = 10  # where there is no terminal to draw a bar on


@dataclass
class Job:
    """A variant on its way.

    Attributes:
        name: of its experiment.
        folder: its copy of the workspace.
        tasks: a run a seed.
        group: holds the execution of all its seeds; None where there is one.
        execution: of all its seeds.
        folders: of the checkpoints of runs that are over, by the number of the task.
        problems: of runs that failed, by seed; of what comes before or after, by its name.
    """

    variant: Variant
    seeds: Sequence[int]
    name: str
    folder: Path
    tasks: list[Task] = field(default_factory=list)
    group: Checkpoint | None = None
    execution: Execution | None = None
    folders: dict[int, Path] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """What the stages say in its copy."""
        return self.folder.with_suffix(".log")

    def execution_of(self, i: int) -> str:
        """Id of the execution of a run that is over, or ''."""
        return str(about(self.folders[i]).get("execution", ""))

    def close(self, event: str, message: str) -> None:
        """In the journal of all its seeds, unless that has an end."""
        if self.execution is not None and not self.execution.ended():
            self.execution.append_event(event, message)


@dataclass
class Account:
    """What running a study came to: names of variants; of those that were made on a strange machine, how it differs."""

    ran: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    diverged: list[str] = field(default_factory=list)
    strange: dict[str, str] = field(default_factory=dict)

    def add(self, other: Account) -> None:
        self.ran += other.ran
        self.known += other.known
        self.failed |= other.failed
        self.diverged += other.diverged
        self.strange |= other.strange

    def fail(self, job: Job, say: Say) -> None:
        """It has no result: here, on disk, in its journal, and on the terminal."""
        self.failed[job.variant.name] = job.problems
        done.record_failure(job.variant, job.seeds, job.problems)
        what = done.in_words(job.problems)
        job.close("failed", what)
        say(f"{job.variant.name} failed: {what}")


class Progress(GroupListener):
    """A bar over all runs, or some plain lines; and a line for what went wrong.

    Args:
        runs: job and number of its task, in the order in which they are handed to the workers.
        bar: over the updates of all runs.
        say: is told lines.
        account: of the study.
    """

    def __init__(self, runs: Sequence[tuple[Job, int]], bar: tqdm[Any], say: Say, account: Account) -> None:
        self._runs, self._bar, self._say, self._account = runs, bar, say, account
        self._done, self._shown = 0, 0

    def began(self, i: int, execution: str, step: int) -> None:
        job, _ = self._runs[i]
        replica = Execution.find(execution)
        if replica is not None:
            replica.name(job.name)
            if job.execution is not None:
                job.execution.add_replica(replica)
        self.progress(step)

    def progress(self, updates: int) -> None:
        self._done += updates
        self._bar.update(updates)  # which counts on a terminal only
        part = self._done * _LINES // int(self._bar.total or 1)
        if self._bar.disable and self._shown < part < _LINES:
            self._shown = part
            self._say(f"update {self._done} of {self._bar.total}")

    def diverged(self, i: int, divergence: Divergence) -> None:
        self._account.diverged.append(self._who(i))
        self._say(f"{self._who(i)}: {divergence}")

    def failed(self, i: int, problem: str) -> None:
        self._say(f"{self._who(i)} failed: {problem}")

    def _who(self, i: int) -> str:
        job, number = self._runs[i]
        return f"{job.variant.name}, seed {job.tasks[number].settings.seed}"


def close_all(jobs: Iterable[Job]) -> None:
    """They were stopped by a signal."""
    for job in jobs:
        job.close("killed", "stopped with the study")

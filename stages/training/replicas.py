"""Several runs at once, each in a process of its own with one thread.

The processes are forks of this one, made after it has imported everything. A run that diverges, fails or is killed
does the others no harm.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from stages.cores import available_cores
from stages.errors import LabError, TrainingError
from stages.execution import Execution
from stages.numerics import check_blas
from stages.training.batches import Sentences
from stages.training.records import Divergence, Record, Update
from stages.training.runs import Listener, Outcome, Stop, Task, run_task

_TELL_EVERY = 50  # updates
_POLL_SECONDS = 0.2


class GroupListener:
    """Is told how the runs of a group go; `i` is the number of the task. This one takes no notice."""

    def began(self, i: int, execution: str, step: int) -> None:
        """A run begins, or goes on after `step` updates."""

    def progress(self, updates: int) -> None:
        """So many more updates are done."""

    def diverged(self, i: int, divergence: Divergence) -> None:
        """It has ended before its time, with a result nonetheless."""

    def failed(self, i: int, problem: str) -> None:
        """It has no result."""


@dataclass
class _Worker:
    task: int
    process: ForkProcess
    pipe: Connection
    execution: str = ""
    folder: Path | None = None
    problem: str = ""
    listening: bool = field(default=True)


def run_tasks(
    tasks: Sequence[Task], splits: Mapping[str, Sentences], workers: int, stop: Stop, listener: GroupListener
) -> list[tuple[Path, Outcome]]:
    """Bring all runs to their end, `workers` of them at once (0: one a core).

    Returns:
        Of each task the folder of its checkpoint, for the caller to remove, and what came of it.

    Raises:
        KeyboardInterrupt: `stop` was asked for; each run that was under way has saved a checkpoint.
        TrainingError: runs that failed or died, when all others are done; theirs stay for the next start.
    """
    folders, problems = attempt_tasks(tasks, splits, workers, stop, listener)
    if problems:
        listed = "; ".join(f"seed {tasks[i].settings.seed}: {problem}" for i, problem in sorted(problems.items()))
        kept = f"the other {len(folders)} are kept" if folders else "none has a result"
        raise TrainingError(f"{len(problems)} of {len(tasks)} replicas failed ({listed}); {kept}, start again to go on")
    return [(folders[i], Outcome.read(folders[i], task.inputs)) for i, task in enumerate(tasks)]


def attempt_tasks(
    tasks: Sequence[Task], splits: Mapping[str, Sentences], workers: int, stop: Stop, listener: GroupListener
) -> tuple[dict[int, Path], dict[int, str]]:
    """Bring all runs to their end, as far as they get.

    Returns:
        By the number of the task, the folder of its checkpoint; of one without a result, what went wrong.

    Raises:
        KeyboardInterrupt: as in `run_tasks`.
    """
    context = multiprocessing.get_context("fork")
    waiting = deque(range(len(tasks)))
    running: dict[int, _Worker] = {}
    folders: dict[int, Path] = {}
    problems: dict[int, str] = {}
    slots = workers or available_cores()
    check_blas()  # once for all forks, which know then
    while running or (waiting and not stop.asked):
        while waiting and len(running) < slots and not stop.asked:
            i = waiting.popleft()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(tasks[i], splits, theirs, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            running[i] = _Worker(i, process, ours)
        if stop.asked:
            for worker in running.values():
                if worker.process.pid is not None and worker.process.is_alive():
                    os.kill(worker.process.pid, signal.SIGTERM)
        _hear(running, listener)
        for i, worker in list(running.items()):
            if worker.process.is_alive():
                continue
            _hear({i: worker}, listener)  # its last words
            worker.process.join()
            worker.pipe.close()
            del running[i]
            if worker.folder is not None:
                folders[i] = worker.folder
            elif not stop.asked:
                problems[i] = worker.problem or _how_it_died(worker.process.exitcode)
                _record_death(worker, problems[i])
                listener.failed(i, problems[i])
    if stop.asked:
        raise KeyboardInterrupt(stop.number)
    return folders, problems


def _hear(running: Mapping[int, _Worker], listener: GroupListener) -> None:
    """Whatever the workers have said, waiting a moment where they say nothing."""
    pipes = {worker.pipe: worker for worker in running.values() if worker.listening}
    ends = [worker.process.sentinel for worker in running.values()]
    for pipe in wait([*pipes, *ends], timeout=_POLL_SECONDS):
        if not isinstance(pipe, Connection):
            continue
        worker = pipes[pipe]
        try:
            while pipe.poll():
                kind, *content = pipe.recv()
                if kind == "started":
                    worker.execution = content[0]
                    listener.began(worker.task, *content)
                elif kind == "progress":
                    listener.progress(*content)
                elif kind == "diverged":
                    listener.diverged(worker.task, *content)
                elif kind == "failed":
                    worker.problem = content[0]
                elif kind == "done":
                    worker.folder = content[0]
        except EOFError:
            worker.listening = False


class _Teller(Listener):
    """Passes on what the other side of a pipe wants to know, updates in bundles."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._updates = pipe, 0
        self.execution: Execution | None = None

    def started(self, execution: Execution, step: int) -> None:
        self.execution = execution
        self._pipe.send(("started", execution.id, step))

    def record(self, record: Record) -> None:
        if isinstance(record, Update):
            self._updates += 1
            if self._updates == _TELL_EVERY:
                self.flush()
        elif isinstance(record, Divergence):
            self._pipe.send(("diverged", record))

    def flush(self) -> None:
        self._pipe.send(("progress", self._updates))
        self._updates = 0


def _work(task: Task, splits: Mapping[str, Sentences], pipe: Connection, parent: int) -> None:
    """The process of one run."""
    teller = _Teller(pipe)
    code = 1
    with Stop(also=lambda: os.getppid() != parent, patient=True) as stop:  # to the end: a save may take its time
        try:
            checkpoint = run_task(task, splits, stop, teller)
            if teller.execution is not None and not teller.execution.ended():
                teller.execution.append_event("finished")
            teller.flush()
            pipe.send(("done", checkpoint.folder))
            code = 0
        except KeyboardInterrupt:
            if teller.execution is not None:
                teller.execution.append_event("killed", "stopped with the experiment")
        except LabError as error:
            _fail(teller, pipe, str(error))
        except Exception as error:  # its message reaches the user through the parent
            _fail(teller, pipe, f"{type(error).__name__}: {error}")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # the parent's exit handlers are the parent's


def _fail(teller: _Teller, pipe: Connection, problem: str) -> None:
    if teller.execution is not None:
        teller.execution.append_event("failed", problem)
    pipe.send(("failed", problem))


def _how_it_died(code: int | None) -> str:
    return f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with code {code}"


def _record_death(worker: _Worker, problem: str) -> None:
    """In the journal of the run, where it could not do so itself."""
    if worker.execution:
        execution = Execution.find(worker.execution)
        if execution is not None and not execution.ended():
            execution.append_event("killed", problem)

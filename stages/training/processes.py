"""One model trained by several processes of this machine, which are forks of this one; or by those that torchrun made.

This process trains nothing: it watches, so that whichever rank dies is named and the others end with it. Rank 0 runs
the task as a single process would, with journal and checkpoint; the others follow it, update by update.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path

import psutil
from torch.distributed import FileStore  # type: ignore[attr-defined]

from stages import files
from stages.errors import LabError, TrainingError
from stages.execution import OWNER, Execution, owner_of_this_process
from stages.numerics import check_blas
from stages.training.batches import Sentences
from stages.training.devices import check_precision, device_of
from stages.training.launch import Watcher
from stages.training.process_group import TIMEOUT_SECONDS, ProcessGroup, lost
from stages.training.records import Divergence, Record, Update
from stages.training.runs import Listener, Stop, Task, records_of, run_task, snapshot_steps
from stages.training.session import Session

MEMORY = "/dev/shm"  # noqa: S108 (Linux's file system in memory; the folder in it is this user's alone)
_TELL_SECONDS = 0.2
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 3.0  # in which the others find out for themselves that one is gone


@dataclass
class _Rank:
    number: int
    process: ForkProcess
    pipe: Connection
    listening: bool = True
    done: Path | None = None
    lost: str = ""  # what it said of the others
    problem: str = ""  # what it said of itself
    stopped_since: float | None = None
    stopped_by: int = 0  # the signal that told it to end


def run_processes(task: Task, splits: Mapping[str, Sentences], stop: Stop, watcher: Watcher) -> Path:
    """Bring a run to its end with as many processes as its settings say.

    Returns:
        The folder of the checkpoint that holds its outcome.

    Raises:
        KeyboardInterrupt: `stop` was asked for; a checkpoint has been saved.
        TrainingError: a process died, stopped, or failed; what it was and why. The last checkpoint is as it was.
    """
    import torch.nn.parallel.distributed  # noqa: F401 (with torch's compiler, once for all forks)

    check_blas()
    context = multiprocessing.get_context("fork")
    size, owner = task.settings.processes, owner_of_this_process()
    ranks: list[_Rank] = []
    with tempfile.TemporaryDirectory(prefix="noam-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as meeting:
        try:
            for number in range(size):
                ours, theirs = context.Pipe(duplex=False)
                arguments = number, task, splits, theirs, Path(meeting) / "store", os.getpid(), owner
                process = context.Process(target=_work, args=arguments, daemon=True)
                process.start()
                theirs.close()
                ranks.append(_Rank(number, process, ours))
            return _watch(ranks, stop, watcher)
        finally:
            for rank in ranks:
                if rank.process.is_alive():
                    rank.process.kill()
                rank.process.join()
                rank.pipe.close()


def _watch(ranks: Sequence[_Rank], stop: Stop, watcher: Watcher) -> Path:
    deadline = math.inf  # of those that are left when one has ended badly
    while True:
        _hear(ranks, watcher)
        alive = [rank for rank in ranks if rank.process.is_alive()]
        ended = [rank for rank in ranks if rank not in alive]
        if ended:
            _hear(ended, watcher)  # their last words
        if ranks[0].done is not None and (not alive or time.monotonic() > deadline):
            return ranks[0].done
        bad = [rank for rank in ended if rank.process.exitcode or rank.problem or rank.lost]
        stuck = [rank for rank in alive if _stopped_for(rank) > TIMEOUT_SECONDS]
        if bad or stuck:
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        elif ended:
            deadline = min(deadline, time.monotonic() + TIMEOUT_SECONDS)
        if not alive or time.monotonic() > deadline:
            if not alive and all(rank.stopped_by for rank in ended):
                raise KeyboardInterrupt(stop.number or ranks[0].stopped_by)
            raise TrainingError(_what_happened(ranks, alive))
        if stop.asked:
            for rank in alive:
                if rank.process.pid is not None:
                    with suppress(ProcessLookupError):
                        os.kill(rank.process.pid, signal.SIGTERM)


def _hear(ranks: Sequence[_Rank], watcher: Watcher) -> None:
    """Whatever the ranks have said, waiting a moment where they say nothing."""
    pipes = {rank.pipe: rank for rank in ranks if rank.listening}
    ends = [rank.process.sentinel for rank in ranks if rank.listening or rank.process.is_alive()]
    for pipe in wait([*pipes, *ends], timeout=_POLL_SECONDS):
        if not isinstance(pipe, Connection):
            continue
        rank = pipes[pipe]
        try:
            while pipe.poll():
                kind, *content = pipe.recv()
                if kind == "started":
                    execution = Execution.find(content[0])
                    if execution is not None:
                        watcher.started(execution, content[1])
                elif kind == "progress":
                    watcher.progress(*content)
                elif kind == "record":
                    watcher.record(*content)
                elif kind == "done":
                    rank.done = content[0]
                elif kind == "lost":
                    rank.lost = content[0]
                elif kind == "failed":
                    rank.problem = content[0]
                elif kind == "stopped":
                    rank.stopped_by = content[0]
        except (EOFError, OSError):
            rank.listening = False


def _stopped_for(rank: _Rank) -> float:
    """Seconds since a process was seen to stand still, by SIGSTOP or a debugger."""
    try:
        stopped = psutil.Process(rank.process.pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return 0.0
    rank.stopped_since = (rank.stopped_since or time.monotonic()) if stopped else None
    return time.monotonic() - rank.stopped_since if rank.stopped_since else 0.0


def _what_happened(ranks: Sequence[_Rank], alive: Sequence[_Rank]) -> str:
    """The one reason: a death, else who stands still, else what a rank said of itself, else who does not answer."""
    size = len(ranks)
    killed = [rank for rank in ranks if rank not in alive and (rank.process.exitcode or 0) < 0]
    stopped = [rank for rank in alive if rank.stopped_since is not None]
    failed = [rank for rank in ranks if rank.problem]
    silent = [rank for rank in alive if not rank.lost]
    if killed:
        found = [f"rank {rank.number} of {size} was killed by {_signal_of(rank)}" for rank in killed]
    elif stopped:
        found = [f"rank {rank.number} of {size} {_silence_of(rank)}" for rank in stopped]
    elif failed:
        return failed[0].problem
    elif silent:
        found = [f"rank {rank.number} of {size} {_silence_of(rank)}" for rank in silent]
    else:
        found = [f"rank {rank.number} of {size}: {rank.lost or 'ended without a word'}" for rank in ranks[:1]]
    return f"{'; '.join(found)}. All processes have ended; start again to go on from the last checkpoint"


def _signal_of(rank: _Rank) -> str:
    return signal.Signals(-(rank.process.exitcode or 0)).name


def _silence_of(rank: _Rank) -> str:
    if rank.stopped_since is not None:
        return f"stood still (SIGSTOP) for {TIMEOUT_SECONDS:g} s"
    return f"did not answer within {TIMEOUT_SECONDS:g} s"


class _Teller(Listener):
    """Passes on what the watching process wants to know, updates in bundles."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._updates, self._told = pipe, 0, time.monotonic()

    def started(self, execution: Execution, step: int) -> None:
        self._pipe.send(("started", execution.id, step))

    def record(self, record: Record) -> None:
        if not isinstance(record, Update):
            self.flush()
            self._pipe.send(("record", record))
            return
        self._updates += 1
        if time.monotonic() - self._told > _TELL_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self._updates:
            self._pipe.send(("progress", self._updates))
        self._updates, self._told = 0, time.monotonic()


def _work(
    number: int,
    task: Task,
    splits: Mapping[str, Sentences],
    pipe: Connection,
    store: Path,
    parent: int,
    owner: int,
) -> None:
    """The process of one rank."""
    os.environ[OWNER] = str(owner)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    teller, code = _Teller(pipe), 1
    with Stop(also=lambda: os.getppid() != parent, patient=True) as stop, suppress(BrokenPipeError):
        try:
            meeting = FileStore(str(store), task.settings.processes)
            group = ProcessGroup(
                *(number, task.settings.processes),
                store=meeting,
                folder=store.parent,
                local_rank=number,
                kind=task.device,
            )
            folder = run_rank(task, splits, stop, teller, group)
            teller.flush()
            pipe.send(("done", folder))
            code = 0
        except KeyboardInterrupt as interrupt:
            pipe.send(("stopped", interrupt.args[0]))
            code = 0
        except Exception as error:
            if (other := lost(error)) is not None:
                pipe.send(("lost", str(other)))
            else:
                pipe.send(("failed", str(error) if isinstance(error, LabError) else _in_words(error)))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # the parent's exit handlers are the parent's


def _in_words(error: Exception) -> str:
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "out of memory: the model or a batch of this text is too large for it"
    return f"{type(error).__name__}: {error}"


def run_rank(
    task: Task, splits: Mapping[str, Sentences], stop: Stop, listener: Listener, group: ProcessGroup
) -> Path | None:
    """Take part in a run to its end, as the rank that this process has.

    Returns:
        On rank 0 the folder of the checkpoint that holds the outcome, and is free to be read.

    Raises:
        KeyboardInterrupt: some rank was told to stop; a checkpoint has been saved.
        LostRankError, and what torch raises for the same: another rank is gone (see `process_group.lost`).
        LabError: as `run_task`.
    """
    group.stop.own = stop
    check_precision(task.settings.precision, group.kind)
    settings = task.settings.model_dump(exclude={"threads"})
    group.check_same(files.sha256_json([task.inputs, settings]))
    if group.writes:
        checkpoint = run_task(task, splits, group.stop, listener, group)
        checkpoint.release()
        group.close()
        return checkpoint.folder
    _follow(task, splits, group)
    group.close()
    return None


def _follow(task: Task, splits: Mapping[str, Sentences], group: ProcessGroup) -> None:
    """The same updates as rank 0, of which nothing is written."""
    settings = task.settings
    session = Session(settings, task.vocab_size, splits, group, device_of(group.kind, group.local_rank))
    restored = group.share_state(None)
    if restored is not None:
        tensors, place = restored
        session.restore(tensors, place["session"])
        _, session.divergence = records_of(place)

    def written() -> None:
        if settings.fsdp:
            session.state()  # rank 0 puts together the parts of all
        group.wait_for_writer()

    due = snapshot_steps(session.updates, settings.snapshots)
    every = settings.checkpoint_every
    for record in session.records():
        if session.step in due and not isinstance(record, Divergence):
            due.remove(session.step)
            if settings.fsdp:
                session.weights()
        if group.stop.asked:
            written()
            raise KeyboardInterrupt(group.stop.number)
        if isinstance(record, Update) and every > 0 and record.step % every == 0:
            written()
    written()

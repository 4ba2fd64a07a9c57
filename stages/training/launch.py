"""How the processes that train one model come to be: forks of the training process, or started by torchrun.

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:PORT -m stages.train

Without torch's process groups, which only a run with several processes loads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stages.errors import ParamError
from stages.training.batches import Sentences
from stages.training.runs import Listener, Stop, Task

_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun puts into the environment


class Watcher(Listener):
    """Is told how a run of several processes goes; this one takes no notice."""

    def progress(self, updates: int) -> None:
        """So many more updates are done."""


def launched() -> bool:
    """torchrun, or something like it, started this process as one of several."""
    return all(name in os.environ for name in _LAUNCHED) and int(os.environ["WORLD_SIZE"]) > 1


def is_writer() -> bool:
    """Of all that torchrun started this is rank 0, which keeps the outputs."""
    return int(os.environ.get("RANK", "0")) == 0


def local_processes(processes: int) -> int:
    """How many of the processes that a run asks for are on this machine.

    Raises:
        ParamError: torchrun started another number; the result depends on it, so the parameters have to say it.
    """
    if not launched():
        return processes
    size = int(os.environ["WORLD_SIZE"])
    if processes != size:
        raise ParamError("processes", f" = {processes}: expected {size}, the number that torchrun started (WORLD_SIZE)")
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def run_processes(task: Task, splits: Mapping[str, Sentences], stop: Stop, watcher: Watcher) -> Path:
    """Bring a run to its end with forks of this process; see `stages.training.processes`."""
    from stages.training import processes

    return processes.run_processes(task, splits, stop, watcher)


def take_part(task: Task, splits: Mapping[str, Sentences], stop: Stop, listener: Listener) -> Path | None:
    """Bring a run to its end as one of the processes that torchrun started.

    Returns:
        On rank 0 the folder of the checkpoint that holds its outcome.

    Raises:
        KeyboardInterrupt: some rank was told to stop; a checkpoint has been saved.
        TrainingError: another process is gone or did not answer.
    """
    from stages.training import process_group, processes

    rank, size, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    try:
        group = process_group.ProcessGroup(rank, size, local_rank=local, kind=task.device)
        return processes.run_rank(task, splits, stop, listener, group)
    except Exception as error:
        if (other := process_group.lost(error)) is not None:
            raise other from None
        raise

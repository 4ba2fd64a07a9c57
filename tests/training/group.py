"""Trains runs in processes of their own and says what it is told: `python -m tests.training.group RUNS WORKERS`.

RUNS are the settings of each, as JSON; WORKERS = 0 trains one after the other in this process. SLOW_DISK=1 makes each
flush to the disk take long.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace

from stages.errors import TrainingError
from stages.execution import Execution
from stages.training.records import Divergence
from stages.training.replicas import GroupListener, run_tasks
from stages.training.runs import Stop
from tests.training.tasks import SPLITS, outcome_of, task


class Told(GroupListener):
    def __init__(self) -> None:
        self.updates = 0

    def began(self, i: int, execution: str, step: int) -> None:
        print("began", i, step, execution, flush=True)

    def progress(self, updates: int) -> None:
        self.updates += updates
        print("progress", flush=True)

    def diverged(self, i: int, divergence: Divergence) -> None:
        print("diverged", i, divergence, flush=True)

    def failed(self, i: int, problem: str) -> None:
        print("failed", i, problem, flush=True)


def main() -> None:
    tasks, workers = [task(**changes) for changes in json.loads(sys.argv[1])], int(sys.argv[2])
    if not workers:
        for one in tasks:
            outcome_of(one)
        return
    if os.environ.get("SLOW_DISK"):
        fsync = os.fsync
        os.fsync = lambda file: (time.sleep(0.7), fsync(file))[1]
    parent = Execution.create("trained", tasks[0].params)
    told = Told()
    try:
        with Stop() as stop:
            found = run_tasks([replace(one, parent=parent.id) for one in tasks], SPLITS, workers, stop, told)
    except TrainingError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt as interrupt:
        print("stopped by", interrupt.args[0], flush=True)
        sys.exit(3)
    for folder, outcome in found:
        assert [update.step for update in outcome.updates] == list(range(1, len(outcome.updates) + 1))
        print("outcome", folder, flush=True)
    print("updates", told.updates, flush=True)


if __name__ == "__main__":
    main()

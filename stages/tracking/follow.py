"""The process beside training that replays the journal into MLflow while it grows, and those of the replicas.

Started by `stages.execution.start_follower` as `python -m stages.tracking.follow DIR`, DIR being the execution's. A
later one for the same execution, which was resumed, takes its place.

It leaves when training is over (the stage `track` does the rest) or when the pipeline ended badly, having recorded
that. Nothing waits for it; where the store is away it tries again, later and later, and says nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from filelock import Timeout

from stages import paths
from stages.errors import LabError
from stages.execution import Execution
from stages.tracking import live
from stages.tracking.runs import Runs
from stages.tracking.store import Store, connect, tracking_errors
from stages.tracking.view import refresh_view

_FIRST_PAUSE = 2.0
_PAUSE = 2.0
_LONGEST_PAUSE = 30.0
_TRIES_AFTER_END = 4
_GONE = "ended without a word: neither training nor dvc is alive any more"


class Stop:
    """SIGTERM ends the follower at once, except while the database is being made."""

    def __init__(self) -> None:
        self.protected = False
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def progress(self, what: str) -> None:
        """Follows the progress of `connect`."""
        self.protected = what == "creating the database"
        if self.asked and not self.protected:
            os._exit(0)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        if not self.protected:
            os._exit(0)


def follow(execution: Execution) -> None:
    """Replay until there is nothing more to wait for."""
    stop = Stop()
    live.sign_in(execution)
    time.sleep(_FIRST_PAUSE)
    pause, tries = _PAUSE, 0
    store: Store | None = None
    runs: Runs | None = None
    while not _is_over(execution) and live.is_signed_in(execution):
        try:
            if store is None:
                store = connect(progress=stop.progress)
                stop.progress("connected")
                refresh_view(store)
            with tracking_errors(store.uri), execution.lock(timeout=5):
                runs = runs or Runs.open(store, execution)
                if runs.own.deleted:
                    return
                runs.look()
                runs.metrics()
                if _is_over(execution) or runs.status():
                    return
            pause = _PAUSE
        except (LabError, Timeout) as error:
            print(error, flush=True)
            runs = None  # one of them may have been deleted meanwhile
            pause = min(2 * pause, _LONGEST_PAUSE)
            tries += execution.ended()
            if tries >= _TRIES_AFTER_END:
                return
        time.sleep(pause)


def _is_over(execution: Execution) -> bool:
    """Nothing is left to do here. What nobody works on any more is declared killed, and that is left to do."""
    events = {entry["event"] for entry in execution.events()}
    if events & {"failed", "killed"}:
        return False
    if events & {"trained", "finished"}:
        return True
    if not execution.alive():
        execution.append_event("killed", _GONE)
    return False


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    root = paths.main_root()
    sys.path[:] = [str(Path(entry or ".").resolve()) for entry in sys.path]  # code stays that of the experiment
    os.environ["DVC_ROOT"] = str(root)
    os.chdir(root)  # the folder of the experiment may be deleted any time
    execution = Execution(folder)
    try:
        follow(execution)
    finally:
        live.sign_out(execution)


if __name__ == "__main__":
    main()

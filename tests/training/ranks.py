"""Sessions of several ranks, one after the other: `python -m tests.training.ranks SIZE RUNS`.

RUNS are the settings of each, as JSON; rank 0 prints a line of JSON for each run.
"""

from __future__ import annotations

import stages.numerics  # noqa: F401  # isort: skip (before NumPy)
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore

from stages.numerics import set_numerics
from stages.training.process_group import ProcessGroup
from stages.training.session import Session
from tests.training.small import VOCABULARY, bytes_of, divergences, settings, updates, validations
from tests.training.tasks import SPLITS


def found(session: Session) -> dict[str, Any]:
    """What a whole run reports, and a digest of the weights that it leaves."""
    records = list(session.records())
    weights = session.weights()
    return {
        "losses": [update.loss for update in updates(records)],
        "norms": [update.grad_norm for update in updates(records)],
        "rates": [update.lr for update in updates(records)],
        "validations": [one.loss for one in validations(records)],
        "divergence": [str(one) for one in divergences(records)],
        "shapes": {name: list(weight.shape) for name, weight in weights.items()},
        "weights": hashlib.sha256(b"".join(bytes_of(weights).values())).hexdigest(),
        "memory": session._engine.weights.numel(),
    }


def main() -> None:
    size, runs = int(sys.argv[1]), json.loads(sys.argv[2])

    set_numerics("portable")
    with tempfile.TemporaryDirectory() as meeting:
        others = []
        for number in range(1, size):
            if (child := os.fork()) == 0:
                take_part(number, size, meeting, runs)
                os._exit(0)
            others.append(child)
        take_part(0, size, meeting, runs)
        ends = [os.waitpid(child, 0)[1] for child in others]
        assert ends == [0] * len(others), ends


def take_part(rank: int, size: int, meeting: str, runs: list[dict[str, Any]]) -> None:
    if size == 1:
        for run in runs:
            print(json.dumps(found(Session(settings(**run), VOCABULARY, SPLITS))), flush=True)
        return
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    group = ProcessGroup(rank, size, store=FileStore(f"{meeting}/store", size))
    for run in runs:
        group.folder = None if run.get("optimizer") == "sgd" else Path(meeting)  # that one through gloo alone
        one = found(Session(settings(**run, processes=size), VOCABULARY, SPLITS, group))
        if rank == 0:
            print(json.dumps(one), flush=True)
    group.close()


if __name__ == "__main__":
    main()

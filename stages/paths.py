"""Where things lie: relative to the folder of the experiment, or to the main workspace.

A queued experiment runs in a copy under `.dvc/tmp/exps/`, which DVC deletes afterwards. What has to outlive it (the
MLflow store, the journals) belongs to the main workspace.
"""

from __future__ import annotations

import os
from pathlib import Path

PARAMS = Path("params.yaml")
PIPELINE = Path("dvc.yaml")
LOCK = Path("dvc.lock")

PREPARED = Path("data/prepared")
CORPUS_REPORT = Path("reports/corpus.json")
VOCAB = Path("data/vocab")
MODEL = Path("data/model")
HISTORY = Path("reports/history.json")
VALIDATION = Path("reports/validation.json")
EVALUATION = Path("data/evaluation")
METRICS = Path("reports/metrics.json")
REPLICAS = Path("reports/replicas.json")
FIGURES = Path("reports/figures")
REPORT = Path("reports/index.html")
TRACKED = Path("reports/tracked.json")

RUN_STATE = "NOAM_RUNSTATE"  # environment

SPLITS = ("train", "valid", "test")


def _cut_at_experiments(folder: Path) -> Path | None:
    """The workspace that `folder` is a temporary copy of, or None where it is no such copy."""
    parts = folder.parts
    for i in range(len(parts) - 2):
        if parts[i : i + 3] == (".dvc", "tmp", "exps"):
            return Path(*parts[:i])
    return None


def main_root() -> Path:
    """The main workspace: DVC_ROOT, else the current folder cut at `.dvc/tmp/exps`."""
    root = os.environ.get("DVC_ROOT")
    return main_of(Path(root).resolve() if root else Path.cwd().resolve())


def main_of(folder: Path) -> Path:
    """The main workspace of a folder in which an experiment ran: itself, or what it was a temporary copy of."""
    return _cut_at_experiments(folder) or folder


def in_temporary_experiment() -> bool:
    """True in the copy of the workspace that DVC makes for `--queue` and `--temp`."""
    return _cut_at_experiments(Path.cwd().resolve()) is not None


def run_state() -> Path:
    """The folder for what must survive an experiment and is never tracked: journals, checkpoints, locks, outboxes.

    NOAM_RUNSTATE names another one, which several machines may share.
    """
    return main_root() / (os.environ.get(RUN_STATE) or ".runstate")


def shares_run_state() -> bool:
    """Other machines may work in the same folder."""
    return bool(os.environ.get(RUN_STATE))

"""What is known of the results of an execution, in its folder, and the results themselves until MLflow has them.

executions/<id>/fingerprint      which results are this execution's (`stages.tracking.fingerprint`)
executions/<id>/experiments      further names that DVC has given to the same results, one a line
executions/<id>/small/           what it takes to find its results in DVC's cache again, once no commit refers to them
executions/<id>/files/           a copy of the results, as they lay in the workspace, until MLflow has them
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from stages import files, paths
from stages.execution import Execution

# What a run in MLflow is made of, relative to the folder of an experiment. `stages` is code that the model needs.
RESULTS = (
    paths.PARAMS,
    paths.LOCK,
    paths.CORPUS_REPORT,
    paths.VOCAB / "vocab.json",
    paths.MODEL,
    paths.EVALUATION,
    paths.HISTORY,
    paths.VALIDATION,
    paths.METRICS,
    paths.REPLICAS,
    paths.FIGURES,
    paths.REPORT,
)
CODE = Path("stages")
SMALL = (paths.PARAMS, paths.LOCK, paths.METRICS)  # results that DVC's cache does not have


def fingerprint_of(execution: Execution) -> str | None:
    """The fingerprint of an execution's results; None for one that has none."""
    file = execution.folder / "fingerprint"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None


def set_fingerprint(execution: Execution, fingerprint: str, folder: Path = Path()) -> None:
    """The results in `folder` are those of the execution."""
    with files.replacing_folder(remembered(execution)) as small:
        copy_results(folder, small, SMALL)
    files.write_text(execution.folder / "fingerprint", fingerprint + "\n")


def remembered(execution: Execution) -> Path:
    """The folder with the small ones among its results."""
    return execution.folder / "small"


def with_fingerprint(fingerprint: str) -> list[Execution]:
    """The executions here with these results, the oldest first."""
    found = [one for one in Execution.all() if fingerprint_of(one) == fingerprint]
    return sorted(found, key=lambda one: one.record.started)


def experiments_of(execution: Execution) -> list[str]:
    """DVC's names for the results of an execution, each once."""
    file = execution.folder / "experiments"
    more = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return list(dict.fromkeys(name for name in [execution.record.experiment, *more] if name))


def add_experiment(execution: Execution, name: str) -> None:
    """Note one more name for the same results."""
    if name and name not in experiments_of(execution):
        with open(execution.folder / "experiments", "a", encoding="utf-8") as names:
            names.write(name + "\n")


def keep(execution: Execution, folder: Path) -> None:
    """Copy the results in `folder`, and the code that reads them, into the outbox."""
    with files.replacing_folder(execution.folder / "files") as box:
        copy_results(folder, box, [*RESULTS, CODE])


def kept(execution: Execution) -> Path | None:
    """The results that wait in the outbox."""
    folder = execution.folder / "files"
    return folder if folder.is_dir() else None


def drop(execution: Execution) -> None:
    """MLflow has them: empty the outbox."""
    shutil.rmtree(execution.folder / "files", ignore_errors=True)


def copy_results(source: Path, target: Path, wanted: Iterable[Path]) -> None:
    """Copy files and folders that are there; what is missing is left out."""
    for path in wanted:
        if (source / path).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.tmp")
            shutil.copytree(source / path, target / path, ignore=ignored, dirs_exist_ok=True)
        elif (source / path).is_file():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, target / path)

"""What can go wrong for a user, each as one message.

LabError                 one line on stderr, exit code 1, no traceback
├── ParamError           a key of params.yaml: its value and what is allowed
├── CorpusError          a file of text: its path, line and what to do
├── ArtifactError        an output of an earlier stage that is missing or damaged
├── ChangedInputError    params, code or data edited while a stage ran
├── RepositoryError      a state of git in which DVC would lose results
├── CheckpointError      a checkpoint that cannot be written or read
├── TrainingError        a replica died
├── StudyError           a study file: its key and what is allowed; runs that cannot be compared
└── TrackingError        MLflow could not be reached or refused
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class LabError(Exception):
    """Base of all errors that are the user's to mend; `str(error)` is the whole message."""


class ParamError(LabError):
    """A value in the parameter file that is missing, unknown, of the wrong type or out of range."""

    def __init__(self, key: str, problem: str, *, file: str = "params.yaml") -> None:
        super().__init__(f"{file}: {key}{problem}")
        self.key = key


class CorpusError(LabError):
    """Text that cannot be used as it is."""

    def __init__(self, path: Path | str, problem: str, *, line: int | None = None) -> None:
        place = f"{path}, line {line}" if line is not None else f"{path}"
        super().__init__(f"{place}: {problem}")


class ArtifactError(LabError):
    """A file made by an earlier stage is missing, damaged or belongs to something else."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


class ChangedInputError(LabError):
    """An input of a stage changed while the stage ran, so that DVC would record the wrong one."""

    def __init__(self, stage: str, changed: Iterable[str]) -> None:
        names = ", ".join(changed)
        super().__init__(
            f"stage {stage}: {names} changed while the stage ran; nothing was written. "
            "Run `dvc repro` again to use the new state."
        )


class RepositoryError(LabError):
    """A state of the git repository in which results would be lost."""


class CheckpointError(LabError):
    """A checkpoint that cannot be written, or that is damaged or foreign."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


class TrainingError(LabError):
    """Training could not be brought to its end."""


class StudyError(LabError):
    """A study file that cannot be used as it is, or runs that cannot be compared."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


class TrackingError(LabError):
    """MLflow could not be reached, or refused what was sent."""


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'warmup'?)` for the known name closest to `name`, or an empty string."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""

"""Executions made of results alone, where no journal is at hand: a fresh clone, a restored cache, an old experiment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stages import files, paths
from stages.errors import LabError, TrackingError
from stages.execution import Execution, Journal
from stages.params import parse_params, read_params_file
from stages.tracking import outbox
from stages.tracking.fingerprint import fingerprint_of_folder, fingerprint_of_revision, is_intact
from stages.tracking.store import waiting_lock

_LOST = "its files are neither in the workspace nor in DVC's cache; where there is a remote, `dvc pull` brings them"


@dataclass(frozen=True)
class Revision:
    """A commit of git with results: an experiment of DVC, or HEAD.

    Attributes:
        commit: in hex.
        experiment: DVC's name, or "" for HEAD.
        baseline: the commit that the experiment started from.
    """

    commit: str
    experiment: str
    baseline: str

    def __str__(self) -> str:
        return f"experiment {self.experiment}" if self.experiment else f"commit {self.commit[:7]}"


def restored_execution(folder: Path, fingerprint: str, revision: Revision | None = None) -> Execution:
    """The newest execution of these results; made if there is none here, with a journal from their history.

    The journal is written once, so every replay sends the same times: the start, and a millisecond an update.

    Raises:
        ArtifactError: the history is missing or damaged.
    """
    known = outbox.with_fingerprint(fingerprint)
    if known:
        return known[-1]
    entries = _entries(folder)
    execution = Execution.create("restored", _params(folder))
    try:
        if revision is not None:
            record = execution.record.model_copy(
                update={"experiment": revision.experiment, "commit": revision.baseline, "dirty": "unknown"}
            )
            files.write_text(execution.folder / "execution.json", record.model_dump_json(indent=1) + "\n")
        started = execution.record.started
        lines = [json.dumps({**entry, "t": started + entry["t"]}, ensure_ascii=False) + "\n" for entry in entries]
        files.write_text(execution.journal_path, "".join(lines))
        outbox.set_fingerprint(execution, fingerprint)
    except BaseException:
        shutil.rmtree(execution.folder, ignore_errors=True)
        raise
    return execution


@contextmanager
def restoring() -> Iterator[None]:
    """Held between looking whether results are known and making an execution of them."""
    with waiting_lock("restore"):
        yield


def is_half_made(execution: Execution) -> bool:
    """A restored execution whose making was cut short: nothing in it is of use."""
    return execution.record.kind == "restored" and outbox.fingerprint_of(execution) is None


@contextmanager
def results_of(fingerprint: str, execution: Execution | None, revisions: list[Revision]) -> Iterator[Path]:
    """A folder with the results of that fingerprint: the outbox, the workspace, or a revision from DVC's cache.

    Raises:
        TrackingError: they are in none of them any more.
    """
    box = outbox.kept(execution) if execution is not None else None
    root = paths.main_root()
    if box is not None:
        yield box
    elif fingerprint_of_folder(root) == fingerprint and has_results(root) and is_intact(root):
        yield root
    else:
        found = [one for one in revisions if fingerprint_of_revision(root, one.commit) == fingerprint]
        with TemporaryDirectory(prefix="noam-") as temporary:
            for revision in found:
                with suppress(TrackingError):
                    fetch_revision(revision, Path(temporary))
                    break
            else:
                raise TrackingError(_LOST)
            yield Path(temporary)


def has_results(folder: Path) -> bool:
    """The files that a run needs are there (a clone before `dvc pull` has only some)."""
    needed = (paths.PARAMS, paths.LOCK, paths.HISTORY, paths.METRICS, paths.MODEL / "config.json")
    return all((folder / path).is_file() for path in (*needed, paths.MODEL / "weights.safetensors"))


def revisions() -> list[Revision]:
    """HEAD and DVC's experiments; none outside git."""
    root = paths.main_root()
    head = _git(root, "rev-parse", "--verify", "HEAD")
    if not head:
        return []
    found = [Revision(head[0], "", head[0])]
    for line in _git(root, "for-each-ref", "--format=%(objectname) %(refname)", "refs/exps"):
        commit, _, name = line.partition(" ")
        parts = name.split("/")  # refs/exps/<2 digits>/<38 digits of the baseline>/<name>
        if len(parts) == 5 and len(parts[2]) == 2 and len(parts[3]) == 38:
            found.append(Revision(commit, parts[4], parts[2] + parts[3]))
    return found


def fetch_revision(revision: Revision, target: Path) -> None:
    """Copy the results of a revision out of git, DVC's cache or its remote.

    Raises:
        TrackingError: the cache has lost them.
    """
    from dvc.api import DVCFileSystem  # type: ignore[import-untyped]

    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        system = DVCFileSystem(os.fspath(paths.main_root()), rev=revision.commit)
        for path in (*outbox.RESULTS, outbox.CODE):
            if system.exists(path.as_posix()):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                system.get(path.as_posix(), str(target / path), recursive=True)
    except Exception as error:  # DVC has no common base for what its file system raises
        raise TrackingError(_LOST) from error
    if not has_results(target):
        raise TrackingError(_LOST)


class _Collector(Journal):
    """A journal in memory, with times relative to the start: a millisecond an update."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.entries.append({"s": step, "t": step, "m": dict(metrics)})


def _entries(folder: Path) -> list[dict[str, Any]]:
    """What training would have journalled for the history in `folder`."""
    from stages.training.records import Update, Validation  # imports torch
    from stages.training.series import JournalSeries

    history = [Update(**record) for record in files.read_json(folder / paths.HISTORY)]
    validation = [Validation(**record) for record in files.read_json(folder / paths.VALIDATION)]
    collector = _Collector()
    series = JournalSeries(collector, len(history))
    records: list[Update | Validation] = [*history, *validation]
    for record in sorted(records, key=lambda one: one.step):  # stable: an update before its validation
        if isinstance(record, Update):
            series.update(record)
        else:
            series.validation(record)
    end = len(history)
    return [*collector.entries, {"event": "trained", "t": end}, {"event": "finished", "t": end + 1}]


def _params(folder: Path) -> dict[str, Any]:
    """The parameters of results; those of another version of the pipeline are taken as they are."""
    raw = read_params_file(folder / paths.PARAMS)
    try:
        return parse_params(raw).model_dump()
    except LabError:
        return {"seed": 0, **raw}


def _git(root: Path, *arguments: str) -> list[str]:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []

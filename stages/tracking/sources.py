"""Where the files of results are: in the outbox, the workspace, a commit with DVC's cache, or that cache alone."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from stages import paths
from stages.errors import TrackingError
from stages.execution import Execution
from stages.repository import answer
from stages.tracking import outbox
from stages.tracking.fingerprint import fingerprint_of_folder, fingerprint_of_revision, is_intact, outputs

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


@contextmanager
def results_of(fingerprint: str, execution: Execution | None, revisions: list[Revision]) -> Iterator[Path]:
    """A folder with the results of that fingerprint: the outbox, the workspace, or what DVC's cache still has.

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
        found = [one for one in revisions if _fingerprint(root, one.commit) == fingerprint]
        with TemporaryDirectory(prefix="noam-") as temporary:
            problem = _LOST
            for revision in found:
                try:
                    fetch_revision(revision, Path(temporary))
                    break
                except TrackingError as error:
                    problem = str(error)
            else:
                if execution is None:
                    raise TrackingError(problem)
                fetch_uncommitted(execution, Path(temporary))
            yield Path(temporary)


def has_results(folder: Path) -> bool:
    """The files that a run needs are there (a clone before `dvc pull` has only some)."""
    needed = (paths.PARAMS, paths.LOCK, paths.HISTORY, paths.METRICS, paths.MODEL / "config.json")
    return all((folder / path).is_file() for path in (*needed, paths.MODEL / "weights.safetensors"))


def revisions() -> list[Revision]:
    """HEAD and DVC's experiments; none outside git."""
    root = paths.main_root()
    head = answer("rev-parse", "--verify", "HEAD", folder=root)
    if head is None:
        return []
    found = [Revision(head, "", head)]
    listed = answer("for-each-ref", "--format=%(objectname) %(refname)", "refs/exps", folder=root) or ""
    for line in listed.splitlines():
        commit, _, name = line.partition(" ")
        parts = name.split("/")  # refs/exps/<2 digits>/<38 digits of the baseline>/<name>
        if len(parts) == 5 and len(parts[2]) == 2 and len(parts[3]) == 38:
            found.append(Revision(commit, parts[4], parts[2] + parts[3]))
    return found


def fetch_revision(revision: Revision, target: Path) -> None:
    """Copy the results of a revision out of git and DVC's cache, or with DVC's help out of its remote.

    Raises:
        TrackingError: neither has them.
    """
    try:
        _empty(target)
        _export(revision.commit, target)
        _copy_from_cache(target)
    except Exception:  # DVC has no common base for what it raises; its own way is slower, and knows remotes
        _fetch_with_dvc(revision, target)
    if not has_results(target):
        raise TrackingError(_LOST)


def fetch_uncommitted(execution: Execution, target: Path) -> None:
    """Copy results that no commit refers to out of DVC's cache, as far as that still has them.

    Raises:
        TrackingError: it has not.
    """
    try:
        _empty(target)
        outbox.copy_results(outbox.remembered(execution), target, outbox.SMALL)
        _copy_from_cache(target)
    except Exception as error:  # as above
        raise TrackingError(_LOST) from error


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _export(commit: str, target: Path) -> None:
    """What git has of the results of a commit: code, and what DVC's cache does not have."""
    names = [path.as_posix() for path in (*outbox.SMALL, outbox.CODE)]
    command = ["git", "archive", "--format=tar", commit, "--", *names]
    done = subprocess.run(command, cwd=paths.main_root(), capture_output=True, check=True, timeout=60)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(target, filter="data")


def _copy_from_cache(target: Path) -> None:
    """The results that the dvc.lock in `target` lists, out of DVC's cache."""
    root = _cache_folder(paths.main_root())
    for path, md5 in outputs((target / paths.LOCK).read_text(encoding="utf-8")).items():
        listed = {path: md5}
        if md5.endswith(".dir"):
            content = json.loads(_cached(root, md5).read_text(encoding="utf-8"))
            listed = {path / entry["relpath"]: entry["md5"] for entry in content}
        for file, digest in listed.items():
            if any(file.is_relative_to(wanted) for wanted in outbox.RESULTS) and file not in outbox.SMALL:
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(_cached(root, digest), target / file)


def _fetch_with_dvc(revision: Revision, target: Path) -> None:
    from dvc.api import DVCFileSystem  # type: ignore[import-untyped]

    _empty(target)
    try:
        system = DVCFileSystem(os.fspath(paths.main_root()), rev=revision.commit)
        for path in (*outbox.RESULTS, outbox.CODE):
            if system.exists(path.as_posix()):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                system.get(path.as_posix(), str(target / path), recursive=True)
    except Exception as error:  # as above
        raise TrackingError(f"{_LOST}{_of_remote(error)}") from error


def _of_remote(error: BaseException) -> str:
    """Why DVC's remote did not give the files, if it is not that it has none of them."""
    own = type(error).__module__.startswith("dvc")  # which wraps what happened
    cause = (error.__cause__ or error.__context__) if own else error
    if cause is None or isinstance(cause, FileNotFoundError):
        return ""
    said = str(cause).strip().splitlines() or [type(cause).__name__]
    return f" (DVC's remote: {said[0][:200]})"


@cache
def _cache_folder(root: Path) -> Path:
    from dvc.repo import Repo  # type: ignore[import-untyped]

    with Repo(os.fspath(root)) as repo:
        return Path(repo.cache.local.path)


def _cached(root: Path, md5: str) -> Path:
    return root / md5[:2] / md5[2:]


@cache
def _fingerprint(root: Path, commit: str) -> str | None:
    """`fingerprint_of_revision` of a commit, which never changes, read once."""
    return fingerprint_of_revision(root, commit)

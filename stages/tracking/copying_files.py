"""Artifacts of a run or a model, sent to the same place in another store: only what is not there yet.

MLflow gives no digests of artifacts, so files of the same size are compared by their bytes. Nothing is overwritten.
Stores put a file into its place at once, whole, so that a kill leaves none half written.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

MODEL_FILE = "MLmodel"  # names the run, the model and its place
Rewriting = Callable[[str], str]


@dataclass
class Sent:
    """What became of the files.

    Attributes:
        files: that were sent.
        differing: that are there with another content, and were left so.
    """

    files: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)


def repository(location: str, uri: str) -> ArtifactRepository:
    """The artifacts at a location of the store at `uri`."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(location, tracking_uri=uri)


def send_files(
    source: ArtifactRepository,
    target: ArtifactRepository,
    rewriting: Rewriting = str,
    *,
    replace: bool = False,
) -> Sent:
    """Send the files that are missing.

    Args:
        source: where they are.
        target: where they should be.
        rewriting: the content of the file `MLmodel` as it should be there.
        replace: files that differ are replaced, and those that the source does not have removed.
    """
    here, there = dict(listed(source)), dict(listed(target))
    sent = Sent()
    with tempfile.TemporaryDirectory(prefix="noam-") as temporary:
        box, old = Path(temporary) / "box", Path(temporary) / "old"
        box.mkdir()
        for name, size in here.items():
            rewritten = name == MODEL_FILE
            if name in there and there[name] != size and not rewritten and not replace:
                sent.differing.append(name)
                continue
            file = download(source, name, box)
            if rewritten:
                file.write_text(rewriting(file.read_text(encoding="utf-8")), encoding="utf-8")
            if name in there:
                same = download(target, name, old).read_bytes() == file.read_bytes()
                if same or not replace:
                    sent.differing += [] if same else [name]
                    file.unlink()
                    continue
            sent.files.append(name)
        if sent.files:
            for empty in sorted((path for path in box.rglob("*") if path.is_dir()), reverse=True):
                if not any(empty.iterdir()):
                    empty.rmdir()
            target.log_artifacts(str(box))  # type: ignore[no-untyped-call]
    for name in there.keys() - here.keys() if replace else ():
        target.delete_artifacts(name)  # type: ignore[no-untyped-call]
        sent.files.append(name)
    return sent


def listed(repository: ArtifactRepository, folder: str | None = None) -> Iterator[tuple[str, int | None]]:
    """All files below a folder, with their sizes."""
    for entry in sorted(repository.list_artifacts(folder), key=lambda one: str(one.path)):
        if entry.is_dir:
            yield from listed(repository, entry.path)
        else:
            yield entry.path, entry.file_size


def download(repository: ArtifactRepository, name: str, folder: Path) -> Path:
    """A copy of a file, at its own place below a folder."""
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="noam-") as temporary:
        got = Path(repository.download_artifacts(name, temporary))  # type: ignore[no-untyped-call]
        shutil.copyfile(got, target)
    return target

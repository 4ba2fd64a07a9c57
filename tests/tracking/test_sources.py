"""Where the files of results come from when they are not in the workspace."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stages import files, paths
from stages.errors import TrackingError
from stages.tracking import outbox
from stages.tracking.sources import fetch_revision, revisions
from tests.tracking import test_sync

dvc = test_sync.dvc  # the fixture


def contents(folder: Path) -> dict[str, str]:
    """MD5 of each result, and of the code, by its path in the folder."""
    wanted = [*outbox.RESULTS, outbox.CODE]
    found = [file for path in wanted for file in [folder / path, *(folder / path).rglob("*")] if file.is_file()]
    return {str(file.relative_to(folder)): files.md5_file(file) for file in found if "__pycache__" not in file.parts}


def test_a_revision_out_of_the_cache_of_the_remote_and_of_neither(
    workspace: Path, dvc: Callable[..., str], tmp_path: Path
) -> None:
    expected = contents(workspace)
    dvc("dvc", "remote", "add", "-q", "-d", "away", str(tmp_path / "remote"))
    dvc("dvc", "push", "-q")
    dvc("git", "commit", "-qam", "a remote")
    (head,) = revisions()
    shutil.rmtree(workspace / paths.FIGURES)
    fetch_revision(head, tmp_path / "cached")
    assert contents(tmp_path / "cached") == expected

    lost = [path for path in (workspace / ".dvc/cache/files/md5").rglob("*") if path.is_file()]
    for path in lost:
        path.unlink()
    fetch_revision(head, tmp_path / "fetched")
    assert contents(tmp_path / "fetched") == expected

    shutil.rmtree(workspace / ".dvc/cache")
    shutil.rmtree(tmp_path / "remote")
    with pytest.raises(TrackingError, match="its files are neither"):
        fetch_revision(head, tmp_path / "nothing")

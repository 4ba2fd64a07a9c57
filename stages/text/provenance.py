"""Whether git or DVC keeps a corpus, without which other machines and queued experiments do not have it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from stages.repository import answer


def advice(corpus: Path, files: Iterable[Path]) -> str | None:
    """What to do so that the corpus is kept, or None where it is, or where there is no git to ask.

    Args:
        corpus: relative to the current folder, which is the project, or absolute.
        files: the files that are read of it.
    """
    project = Path.cwd()
    absolute = _absolute(corpus)
    if not absolute.is_relative_to(project):
        return (
            f"{corpus} lies outside the project, where neither git nor DVC keeps it; "
            f"`dvc import-url {absolute} data/raw/{absolute.name}` brings it in"
        )
    inside = absolute.relative_to(project)
    if any(project.joinpath(f"{part}.dvc").is_file() for part in [inside, *inside.parents][:-1]):
        return None
    kept = _kept_by_git(inside)
    if kept is None or all(_absolute(path) in kept for path in files):
        return None
    return (
        f"{corpus} is not kept by git or DVC, so other machines and queued experiments do not have it; "
        f"`dvc add {inside.as_posix()}` keeps it"
    )


def _absolute(path: Path) -> Path:
    """Without `..`; a link stays the link, which is what git keeps."""
    return Path(os.path.normpath(Path.cwd() / path))


def _kept_by_git(path: Path) -> set[Path] | None:
    """The files in git at a path, or below it; None where git cannot say."""
    names = answer("--literal-pathspecs", "ls-files", "-z", "--", path.as_posix())
    return None if names is None else {Path.cwd() / name for name in names.split("\0") if name}

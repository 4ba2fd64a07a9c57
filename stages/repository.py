"""Git, asked in one place: what it answers, or what it refuses."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from stages.errors import RepositoryError

_SECONDS = 600


def git(*arguments: str, folder: Path | None = None, variables: Mapping[str, str] | None = None) -> str:
    """What git answers, in `folder` or in the current one, with these variables besides those of the environment.

    Raises:
        RepositoryError: it refuses, or does not answer in ten minutes.
    """
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env={**os.environ, **(variables or {})},
            capture_output=True,
            check=True,
            timeout=_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip().splitlines()
        fatal = [line for line in said if line.startswith(("fatal: ", "error: "))]  # the last line is often mere advice
        raise RepositoryError(f"git {arguments[0]}: {(fatal or said[-1:] or [error.returncode])[0]}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RepositoryError(f"git {arguments[0]}: {error}") from None
    return done.stdout.decode("utf-8", "surrogateescape").strip("\n")


def answer(*arguments: str, folder: Path | None = None) -> str | None:
    """What git answers; None where it refuses, such as outside a repository, or is not installed."""
    try:
        return git(*arguments, folder=folder)
    except RepositoryError:
        return None


def git_state() -> tuple[str, str]:
    """The commit that this execution started from, and whether tracked files differ from it.

    `("unknown", "unknown")` without git, outside a repository or before the first commit.
    """
    outputs = ("dvc.lock", "reports", "data")
    excluded = [f":(exclude){name}" for name in outputs]
    commit = answer("rev-parse", "--verify", "HEAD")
    if commit is None:
        return "unknown", "unknown"
    changes = answer("status", "--porcelain", "--untracked-files=no", "--", ".", *excluded)
    dirty = "unknown" if changes is None else "yes" if changes else "no"
    return os.environ.get("DVC_EXP_BASELINE_REV", commit), dirty

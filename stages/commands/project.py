"""Is this the folder of a project? Asked before a command that would look for its files here, or leave some."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from stages import paths
from stages.errors import RepositoryError

_OF_A_PROJECT = {"summary", "sync", "ui", "doctor", "verify", "study", "compare", "lr-find"}
_OF_A_STORE = {"ui", "compare"}  # they need no project where MLFLOW_TRACKING_URI names a store
_OF_A_MODEL = {"predict", "generate", "score", "serve"}


def check(arguments: argparse.Namespace) -> None:
    """Refuse a command that belongs into a project.

    Raises:
        RepositoryError: the current folder is none.
    """
    command = arguments.command
    if command in _OF_A_MODEL:
        named = arguments.model or getattr(arguments, "run", None)
        fits = bool(named) or paths.MODEL.exists()
    else:
        fits = command not in _OF_A_PROJECT or (command in _OF_A_STORE and "MLFLOW_TRACKING_URI" in os.environ)
    if fits or (paths.main_root() / paths.PIPELINE).exists():
        return
    here = Path.cwd()
    above = next((folder for folder in here.parents if (folder / paths.PIPELINE).exists()), None)
    advice = f"run it in {above}" if above else "clone a project's repository and run it there"
    other = " (or name a model: --model FOLDER)" if command in _OF_A_MODEL else ""
    raise RepositoryError(f"{here}: no {paths.PIPELINE} here, which `noam {command}` needs; {advice}{other}")

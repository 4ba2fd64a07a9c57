"""A variant run by `dvc exp run` itself in a clone of its own: for other code, and on other machines.

The replica workers run the code that is loaded, so a variant whose code is a revision of git cannot share their process
tree. What comes of it is an experiment on top of that revision. A variant on another machine (`stages.studies.remote`)
is run in the same way.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.errors import TrainingError
from stages.execution import OWNER
from stages.repository import git
from stages.studies import workspace
from stages.studies.done import Done
from stages.studies.plan import Variant
from stages.studies.processes import last_words

# By which an interpreter would find another workspace's code before that of the folder it works in.
_HIDDEN = {"PYTHONPATH", "PYTHONSAFEPATH", OWNER}


def run_elsewhere(variant: Variant, seeds: Sequence[int], name: str, parent: Path) -> Done:
    """Run a variant at its revision; its experiment is in this repository afterwards.

    Raises:
        TrainingError: `dvc exp run` failed there; its last line.
        RepositoryError: git refuses.
    """
    folder = parent / f"clone-{name}"
    base, log = variant.commit, folder.with_suffix(".log")
    shutil.rmtree(folder, ignore_errors=True)
    git("clone", "--quiet", "--shared", "--no-checkout", ".", str(folder))
    with workspace.inside(folder):
        git("checkout", "--quiet", "--detach", base)
    params = variant.with_seeds(seeds)
    workspace.complete(folder, params, scm=True)
    try:
        dvc(folder, log, "exp", "run", "--quiet", "--name", name)
    except TrainingError as error:
        raise TrainingError(f"at {variant.code}: {error}") from None
    ref = workspace.ref_of(name, base)
    git("fetch", "--quiet", str(folder), f"{ref}:{ref}")
    shutil.rmtree(folder, ignore_errors=True)
    return Done(commit=workspace.commit_of(ref), baseline=base)


def environment(**more: str) -> dict[str, str]:
    """This process's, so that the code of the folder that a process works in is what it runs, with our tools."""
    kept = {key: value for key, value in os.environ.items() if key not in _HIDDEN and not key.startswith("DVC_")}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"} | more


def dvc(folder: Path, log: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
    """`dvc …` in a clone, with what it says appended to `log`.

    Raises:
        TrainingError: it failed; its last line.
    """
    with open(log, "ab") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "dvc", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else environment(),
            check=False,
        )
    if ended.returncode:
        raise TrainingError(last_words(log))

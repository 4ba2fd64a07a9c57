"""A variant whose code is another one: a revision of git, run by `dvc exp run` itself in a clone of its own.

The replica workers run the code that is loaded, so such a variant cannot share their process tree. What comes of it is
an experiment on top of that revision.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from stages.errors import TrainingError
from stages.execution import OWNER
from stages.studies import workspace
from stages.studies.done import Done
from stages.studies.plan import Variant
from stages.studies.processes import last_words


def run_elsewhere(variant: Variant, seeds: Sequence[int], name: str, parent: Path) -> Done:
    """Run a variant at its revision; its experiment is in this repository afterwards.

    Raises:
        TrainingError: `dvc exp run` failed there; its last line.
        RepositoryError: git refuses.
    """
    folder = parent / f"clone-{name}"
    base, log = variant.commit, folder.with_suffix(".log")
    shutil.rmtree(folder, ignore_errors=True)
    workspace.git("clone", "--quiet", "--shared", "--no-checkout", ".", str(folder))
    with workspace.inside(folder):
        workspace.git("checkout", "--quiet", "--detach", base)
    params = variant.with_seeds(seeds)
    workspace.complete(folder, params, scm=True)
    # The interpreter must not find this workspace's code before that of the folder it works in.
    hidden = {"PYTHONPATH", OWNER}
    environment = {key: value for key, value in os.environ.items() if key not in hidden and key[:4] != "DVC_"}
    with open(log, "wb") as output:
        command = [sys.executable, "-m", "dvc", "exp", "run", "--quiet", "--name", name]
        ended = subprocess.run(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False
        )
    if ended.returncode:
        raise TrainingError(f"at {variant.code}: {last_words(log)}")
    ref = workspace.ref_of(name, base)
    workspace.git("fetch", "--quiet", str(folder), f"{ref}:{ref}")
    shutil.rmtree(folder, ignore_errors=True)
    return Done(commit=workspace.commit_of(ref), baseline=base)

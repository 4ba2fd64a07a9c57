"""Do the same inputs give the same bytes here? The command `noam verify`.

The committed state is cloned, run there with an empty cache, and each output is compared with the committed dvc.lock.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from stages import paths
from stages.errors import LabError
from stages.params import read_params_file

_LAST = "plots"  # the stage before `track`, whose receipt is not tracked


def verify() -> int:
    """Run everything anew and compare; 0 if all outputs are the same.

    Raises:
        LabError: there is nothing to compare with, or the run failed.
    """
    root = paths.main_root()
    with tempfile.TemporaryDirectory(prefix="noam-verify-") as temporary:
        clone = Path(temporary) / "clone"
        _call("git", "clone", "--quiet", "--no-hardlinks", str(root), str(clone))
        expected = outputs_of(clone / paths.LOCK)
        _bring_corpus(root, clone)
        changed = subprocess.run(
            ["git", "diff", "--quiet", "HEAD", "--", "stages", "params.yaml", "dvc.yaml"], cwd=root, check=False
        )
        if changed.returncode:
            print("verify: code or parameters here differ from the last commit; the commit is verified", flush=True)
        (clone / paths.LOCK).unlink()  # so that nothing is taken for done
        _call(sys.executable, "-m", "dvc", "repro", "--quiet", _LAST, cwd=clone, env=_environment())
        found = outputs_of(clone / paths.LOCK)
    return report(expected, found)


def outputs_of(lock: Path) -> dict[str, str]:
    """MD5 of each output in dvc.lock, in the order of the stages.

    Raises:
        LabError: there is no dvc.lock.
    """
    if not lock.is_file():
        raise LabError("dvc.lock: not committed, so there is nothing to compare with; commit it after `dvc repro`")
    stages: Mapping[str, Any] = yaml.safe_load(lock.read_text(encoding="utf-8"))["stages"]
    known = [name for name in _order(lock.with_name("dvc.yaml")) if name in stages and name != "track"]
    return {out["path"]: out["md5"] for name in known for out in stages[name].get("outs", [])}


def report(expected: Mapping[str, str], found: Mapping[str, str]) -> int:
    """Say of each output whether it is the same, and name the first that is not."""
    differing = [path for path in expected if found.get(path) != expected[path]]
    for path, digest in expected.items():
        print(f"{'differs' if path in differing else 'same   '}  {digest}  {path}")
    if not differing:
        print(f"all {len(expected)} outputs have the same bytes")
        return 0
    print(f"error: the first output that differs is {differing[0]}; later ones depend on it", file=sys.stderr)
    return 1


def _order(pipeline: Path) -> list[str]:
    return list(yaml.safe_load(pipeline.read_text(encoding="utf-8"))["stages"])


def _bring_corpus(root: Path, clone: Path) -> None:
    """A corpus that git does not hold."""
    corpus = Path(str(read_params_file(clone / paths.PARAMS)["corpus"]))
    if not corpus.is_absolute() and not (clone / corpus).exists() and (root / corpus).exists():
        (clone / corpus).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (root / corpus).is_dir() else shutil.copy
        copy(root / corpus, clone / corpus)


def _environment() -> dict[str, str]:
    """The tools of this interpreter first, and no process beside the run."""
    tools = str(Path(sys.executable).parent)
    return os.environ | {"NOAM_LIVE": "off", "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"}


def _call(*command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(command[:3])} ended with {done.returncode}; nothing was compared")

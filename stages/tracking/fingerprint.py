"""Which results are the same: a digest of what dvc.lock says of the stages that make them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from stages import files, paths
from stages.repository import answer

_STAGES = ("prepare", "vocab", "train", "evaluate", "plots")


def fingerprint(lock_text: str) -> str | None:
    """SHA-256 over the parameters and the MD5 of every input and output of the stages, in hex.

    Commands and sizes have no part in it. None where the results are not of one piece: a stage has not run, or not
    since an earlier one made what it reads; and for text that is no dvc.lock.
    """
    stages = _stages(lock_text)
    if any(name not in stages for name in _STAGES):
        return None
    made = {entry["path"]: entry.get("md5") for name in _STAGES for entry in stages[name].get("outs", [])}
    read = [entry for name in _STAGES for entry in stages[name].get("deps", [])]
    if any(made.get(entry["path"], entry.get("md5")) != entry.get("md5") for entry in read):
        return None
    return files.sha256_json({name: _identity(stages[name]) for name in _STAGES})


def fingerprint_of_folder(folder: Path = Path()) -> str | None:
    """The fingerprint of the results in a folder; DVC brings dvc.lock up to date after each stage."""
    lock = folder / paths.LOCK
    return fingerprint(lock.read_text(encoding="utf-8")) if lock.is_file() else None


def fingerprint_of_revision(root: Path, revision: str) -> str | None:
    """The fingerprint of the results that a commit of git (an experiment of DVC is one) refers to."""
    lock = answer("show", f"{revision}:./{paths.LOCK.as_posix()}", folder=root)
    return fingerprint(lock) if lock is not None else None


def is_intact(folder: Path) -> bool:
    """The single files among the results in a folder are those that dvc.lock lists: nothing is being made anew."""
    lock = folder / paths.LOCK
    if not lock.is_file():
        return False
    known = {folder / path: md5 for path, md5 in outputs(lock.read_text(encoding="utf-8")).items()}
    known.pop(folder / paths.TRACKED, None)
    return all(path.is_dir() or (path.is_file() and files.md5_file(path) == md5) for path, md5 in known.items())


def outputs(lock_text: str) -> dict[Path, str]:
    """DVC's MD5 of each output (`….dir` for a folder), as dvc.lock has it."""
    outs = [entry for stage in _stages(lock_text).values() for entry in stage.get("outs", [])]
    return {Path(entry["path"]): str(entry["md5"]) for entry in outs if "md5" in entry}


def corpus_digest(lock_text: str, corpus: str) -> str | None:
    """DVC's MD5 of the corpus (`….dir` for a folder), as dvc.lock has it."""
    for dep in _stages(lock_text).get("prepare", {}).get("deps", []):
        if dep.get("path") == corpus:
            return str(dep["md5"])
    return None


@lru_cache(maxsize=64)
def _stages(lock_text: str) -> dict[str, Any]:
    try:
        content = yaml.load(lock_text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 (safe)
    except yaml.YAMLError:
        return {}
    stages = content.get("stages") if isinstance(content, dict) else None
    return stages if isinstance(stages, dict) else {}


def _identity(stage: dict[str, Any]) -> dict[str, Any]:
    return {
        "params": stage.get("params", {}),
        "deps": {entry["path"]: entry.get("md5") for entry in stage.get("deps", [])},
        "outs": {entry["path"]: entry.get("md5") for entry in stage.get("outs", [])},
    }

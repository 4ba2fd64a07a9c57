"""Whether results are still those of the parameters, code and data that lie here: a comparison with dvc.lock.

By content, as DVC itself compares, without its start-up time. Stages after the evaluation have no part in the numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from stages import files, paths
from stages.errors import ParamError
from stages.params import Params, parse_params, read_params_file

_STAGES = ("prepare", "vocab", "train", "evaluate")
_HASHED_BYTES = 64 * 2**20  # larger outputs are compared by size alone


def outdated() -> list[str]:
    """What is not as dvc.lock recorded it with the metrics, by name; nothing where there is no record of them."""
    try:
        lock = yaml.safe_load(paths.LOCK.read_text(encoding="utf-8"))["stages"]
        stages = [lock[name] for name in _STAGES]
        made = {out["path"]: out["md5"] for stage in stages for out in stage["outs"]}
        entries = {entry["path"]: entry for stage in stages for entry in [*stage.get("deps", []), *stage["outs"]]}
        used = {key: value for stage in stages for key, value in stage.get("params", {}).get("params.yaml", {}).items()}
        followed = [dep for stage in stages for dep in stage.get("deps", []) if dep["path"] in made]
        newer = {dep["path"] for dep in followed if dep["md5"] != made[dep["path"]]}  # made since, by an earlier stage
        different = {path for path, entry in entries.items() if _differs(Path(path), entry)}
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return []
    return [*_changed_params(used), *sorted(newer | different)]


def _differs(path: Path, entry: Mapping[str, Any]) -> bool:
    """Whether a file or folder is not the one that an entry of the lock tells of."""
    found = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    if not all(file.is_file() for file in found) or sum(file.stat().st_size for file in found) != entry["size"]:
        return True
    if entry["size"] > _HASHED_BYTES:
        return False
    if not path.is_dir():
        return files.md5_file(path) != str(entry["md5"])
    listed = [{"md5": files.md5_file(file), "relpath": file.relative_to(path).as_posix()} for file in found]
    digest = hashlib.md5(json.dumps(listed, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
    return f"{digest}.dir" != str(entry["md5"])


def _changed_params(used: Mapping[str, Any]) -> Iterator[str]:
    """Parameters with another meaning than those of the record, however they are spelled."""
    try:
        raw = read_params_file()
        now = parse_params(raw)
        then = parse_params(raw | {key: value for key, value in used.items() if key in Params.model_fields})
    except ParamError:
        yield paths.PARAMS.name
        return
    changed = [key for key in Params.model_fields if getattr(now, key) != getattr(then, key)]
    if changed:
        yield f"{paths.PARAMS.name} ({', '.join(changed)})"

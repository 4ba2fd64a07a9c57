"""Which runs have a checkpoint on disk, and what they say of themselves. Reads headers only, so it needs no torch."""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import safetensors
from filelock import FileLock, Timeout

from stages import files, paths

_QUIET_SECONDS = 86400.0  # after which a process of another machine is taken for dead
STATE, ABOUT, SNAPSHOTS = "state.safetensors", "about.json", "snapshots"


def checkpoints() -> Path:
    """The folder of all checkpoints."""
    return paths.run_state() / "checkpoints"


def key_of(inputs: Mapping[str, Any]) -> str:
    return files.sha256_json(dict(inputs))[:24]


def about(folder: Path) -> dict[str, Any]:
    """What a checkpoint's folder says of itself; {} where it says nothing."""
    try:
        content = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def step_of(folder: Path) -> int:
    """Updates done at the checkpoint in a folder; 0 where there is none that can be read."""
    try:
        with safetensors.safe_open(folder / STATE, framework="numpy") as file:
            return int((file.metadata() or {})["updates"])
    except (OSError, safetensors.SafetensorError, KeyError, ValueError):
        return 0


def snapshots(folder: Path) -> dict[int, Path]:
    """The weights kept on the way in a checkpoint's folder, by the number of updates done."""
    found = {int(path.stem): path for path in (folder / SNAPSHOTS).glob("*.safetensors")}
    return dict(sorted(found.items()))


def left_behind(inputs: Mapping[str, Any]) -> tuple[int, list[str]] | None:
    """An interrupted run of this workspace that these inputs do not continue: its updates, and what differs."""
    found = []
    for folder in all_kept():
        content, step = about(folder), step_of(folder)
        if step and folder.name != key_of(inputs) and content.get("workspace") == str(Path.cwd().resolve()):
            theirs = dict(content.get("inputs", {}))
            names = theirs.keys() | inputs.keys()
            differing = sorted(name for name in names if theirs.get(name) != inputs.get(name))
            found.append((len(differing), step, differing))
    return min(found)[1:] if found else None


def exists(inputs: Mapping[str, Any]) -> bool:
    """A run with these inputs was begun and not brought to its end."""
    return (checkpoints() / key_of(inputs)).is_dir()


def discard(folder: Path) -> None:
    """Remove the checkpoint of a run that is over, and its results where they belong."""
    shutil.rmtree(folder, ignore_errors=True)
    Path(lock_of(folder).lock_file).unlink(missing_ok=True)


def lock_of(folder: Path) -> FileLock:
    """Held by the process that trains what is in a folder."""
    return FileLock(folder.with_suffix(".lock"))


def is_in_use(folder: Path) -> bool:
    """Some process trains it just now."""
    _, pid, node = [*folder.name.split("-", 2), "", ""][:3]
    if pid.isdecimal():  # the folder of a second process with the same inputs
        if node not in ("", platform.node()):
            return time.time() - max(path.stat().st_mtime for path in [folder, *folder.iterdir()]) < _QUIET_SECONDS
        return bool(psutil.pid_exists(int(pid)))
    try:
        with lock_of(folder).acquire(timeout=0):
            return False
    except Timeout:
        return True


def all_kept() -> Iterator[Path]:
    """The folders of all checkpoints."""
    yield from sorted(path for path in checkpoints().glob("*") if path.is_dir())

"""A training run on disk: saved now and then, found again by what its result depends on. No pickle.

Under `.runstate/checkpoints/<key>/` of the main workspace, `key` being a digest of parameters, code and data:

    about.json            what the key was made of, and the execution that it belongs to
    state.safetensors     the last checkpoint: weights, optimiser, generators; its place as JSON in the file's header
    snapshots/            weights on the way, by the number of updates done
    updates.f64           what the updates reported so far, five numbers each; the checkpoint knows how many, and their
                          checksum

A checkpoint is written beside the last one, flushed to the disk and renamed: whenever the process or the machine
dies, one whole checkpoint is there, the new or the one before.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
from filelock import Timeout
from torch import Tensor

from stages import files, paths
from stages.errors import CheckpointError
from stages.training.kept import ABOUT, SNAPSHOTS, STATE, about, checkpoints, key_of, lock_of
from stages.training.records import Update

_UPDATES = "updates.f64"
_FORMAT = "noam-lab checkpoint 1"
_COLUMNS = 5
PATIENCE = 100.0  # seconds; a server of NFS frees the locks of a machine that is gone after 90
_REMEDY = "`noam doctor --clean` removes it, `-S resume=false` trains without it"


@dataclass
class Saved:
    """A checkpoint as it was read."""

    tensors: dict[str, Tensor]
    place: dict[str, Any]
    updates: list[Update]
    checksum: int  # of the updates


class Checkpoint:
    """The folder of one run, held by one process at a time.

    Args:
        inputs: what the run's result depends on, by name; equal inputs have equal checkpoints.

    A second process with the same inputs gets a folder of its own, which no later one finds. Where other machines share
    the folder it waits first: one that died a moment ago, perhaps with its machine, may not have let go yet.

    Raises:
        CheckpointError: there can be no such folder.
    """

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        root = checkpoints()
        self.folder = root / key_of(inputs)
        self._lock = lock_of(self.folder)
        with _naming(root):
            root.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=PATIENCE if paths.shares_run_state() else 0)
            except Timeout:
                self.folder = root / f"{self.folder.name}-{os.getpid()}-{platform.node()}"
                shutil.rmtree(self.folder, ignore_errors=True)
        self._inputs = dict(inputs)
        self._written = 0
        self._checksum = 0

    @property
    def alone(self) -> bool:
        """No other process trains the same just now."""
        return self._lock.is_locked

    def begin(self) -> None:
        """Start from nothing: what was here is removed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._written = self._checksum = 0

    def claim(self, execution: str) -> None:
        """It belongs to this execution from now on.

        Raises:
            CheckpointError: the folder cannot be written.
        """
        content = {"execution": execution, "workspace": str(Path.cwd().resolve()), "inputs": self._inputs}
        with _naming(self.folder):
            files.write_json(self.folder / ABOUT, content)

    def execution(self) -> str:
        """The id of the execution that it belongs to, or ''."""
        return str(about(self.folder).get("execution", ""))

    def save(self, tensors: dict[str, Tensor], place: Mapping[str, Any], updates: Sequence[Update]) -> None:
        """Replace the last checkpoint.

        Args:
            tensors: state of the session.
            place: whatever else it takes to go on, as JSON.
            updates: all that were reported so far; only new ones are written.

        Raises:
            CheckpointError: the disk is full, or the folder cannot be written; the last checkpoint is as it was.
        """
        with _naming(self.folder):
            rows = np.array(
                [(u.step, u.epoch, u.lr, u.loss, u.grad_norm) for u in updates[self._written :]], dtype="<f8"
            ).tobytes()
            with open(self.folder / _UPDATES, "r+b" if (self.folder / _UPDATES).exists() else "w+b") as file:
                file.truncate(self._written * _COLUMNS * 8)  # what an interrupted run wrote after its last checkpoint
                file.seek(0, os.SEEK_END)
                file.write(rows)
                file.flush()
                os.fsync(file.fileno())
            checksum = zlib.crc32(rows, self._checksum)
            header = {
                "format": _FORMAT,
                "key": key_of(self._inputs),
                "place": json.dumps(place, allow_nan=False),
                "updates": str(len(updates)),
                "checksum": str(checksum),
            }
            beside = self.folder / f"{STATE}.tmp"
            try:
                safetensors.torch.save_file(tensors, beside, metadata=header)
                files.replace_durably(beside, self.folder / STATE)
            finally:
                beside.unlink(missing_ok=True)
        self._written, self._checksum = len(updates), checksum

    def keep(self, step: int, weights: dict[str, Tensor]) -> None:
        """Keep the weights after so many updates beside the checkpoints.

        Raises:
            CheckpointError: the disk is full, or the folder cannot be written.
        """
        with _naming(self.folder):
            target = self.folder / SNAPSHOTS / f"{step}.safetensors"
            target.parent.mkdir(exist_ok=True)
            beside = target.with_suffix(".tmp")
            try:
                safetensors.torch.save_file(weights, beside)
                files.replace_durably(beside, target)
            finally:
                beside.unlink(missing_ok=True)

    def load(self) -> Saved | None:
        """The last checkpoint, or None where there is none yet.

        Raises:
            CheckpointError: what is there is damaged, cut short, of another run, or no checkpoint at all.
        """
        if not (self.folder / STATE).is_file():
            return None
        saved = read(self.folder, key_of(self._inputs))
        self._written, self._checksum = len(saved.updates), saved.checksum
        return saved

    def release(self) -> None:
        """Let another process go on with it."""
        self._lock.release()


def read(folder: Path, key: str) -> Saved:
    """The checkpoint in a folder.

    Raises:
        CheckpointError: it is damaged, cut short, of another run than `key` says, or no checkpoint at all.
    """
    path = folder / STATE
    with _naming(folder):
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            if header.get("format") != _FORMAT:
                raise CheckpointError(path, f"not a checkpoint of this program; {_REMEDY}")
            if header["key"] != key:
                raise CheckpointError(path, f"a checkpoint of another run; {_REMEDY}")
            place, count, checksum = json.loads(header["place"]), int(header["updates"]), int(header["checksum"])
        except (safetensors.SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(path, f"not readable as a checkpoint ({error}); {_REMEDY}") from None
        return Saved(tensors, place, _read_updates(folder / _UPDATES, count, checksum), checksum)


def _read_updates(path: Path, count: int, checksum: int) -> list[Update]:
    content = path.read_bytes()[: count * _COLUMNS * 8] if path.is_file() else b""
    if zlib.crc32(content) != checksum or len(content) != count * _COLUMNS * 8:
        raise CheckpointError(path, f"not what the checkpoint beside it was saved with; {_REMEDY}")
    rows = np.frombuffer(content, dtype="<f8").reshape(count, _COLUMNS).tolist()
    return [Update(int(step), int(epoch), *rest) for step, epoch, *rest in rows]


class _naming:  # noqa: N801 (used like a function)
    """Errors of the file system, as one message that names the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if isinstance(error, OSError | safetensors.SafetensorError):
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise CheckpointError(
                self._folder, f"a checkpoint could not be written or read ({reason}); the last good one is untouched"
            ) from None

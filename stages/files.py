"""Files written whole or not at all, with the same bytes on every run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.errors import ArtifactError


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside the target, flush to disk, rename: a reader sees the old file or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def replace_durably(beside: Path, target: Path) -> None:
    """Put a file that was written beside `target` into its place, and onto the disk with it."""
    with open(beside, "rb") as file:
        os.fsync(file.fileno())
    beside.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name as well
    finally:
        os.close(folder)


def as_usual(path: Path) -> None:
    """Give a file the permissions of any new one (safetensors makes its files private)."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def write_text(path: Path, content: str) -> None:
    """UTF-8 with `\\n`, whatever the locale says."""
    write_bytes(path, content.encode("utf-8"))


def dump_json(value: Any, *, indent: int | None = 1) -> str:
    """Strict JSON (no NaN, no infinity), any script readable, a final newline."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent) + "\n"


def write_json(path: Path, value: Any) -> None:
    write_text(path, dump_json(value))


def write_records(path: Path, records: list[dict[str, Any]]) -> None:
    """A JSON list with one record a line: diffs and eyes can follow it, and `dvc plots` reads it."""
    lines = ",\n".join(json.dumps(record, ensure_ascii=False, allow_nan=False) for record in records)
    write_text(path, f"[\n{lines}\n]\n" if records else "[]\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file that an earlier stage wrote.

    Raises:
        ArtifactError: it is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(path, "not there; `dvc repro` makes it, `dvc checkout` restores it") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise ArtifactError(path, f"not readable as JSON ({error}); `dvc repro -f` makes it anew") from None


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A fresh folder to fill, which takes the place of `folder` when all went well.

    Nothing of the old content stays behind, and a failure half way leaves the old folder as it was.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    try:
        yield beside
        shutil.rmtree(folder, ignore_errors=True)
        beside.replace(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def md5_file(path: Path) -> str:
    """MD5 of a file's bytes, in hex: the name that DVC gives to its content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def sha256_json(value: Any) -> str:
    """SHA-256 of a value's canonical JSON, in hex."""
    canonical = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()

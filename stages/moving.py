"""What a project that was moved, renamed or copied has of its former folder, apart from the MLflow store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from configobj import ConfigObj, ConfigObjError

from stages import files, paths
from stages.execution import Execution, pointer_of
from stages.training.kept import ABOUT, about, all_kept

Fault = tuple[str, Callable[[], object] | None]  # what is wrong, and what mends it if anything does


def project_faults() -> list[Fault]:
    """What points into a former folder, and what mends it."""
    former = _former_folders()
    return [
        *_pointers(former),
        *_checkpoints(former),
        *_dvc_settings(former),
        *_dangling(),
        *_environment(),
    ]


def _former_folders() -> list[Path]:
    """Where the project was before, as far as what it has kept says so."""
    found = [Path(one.record.workspace) for one in Execution.all()]
    found += [Path(text) for folder in all_kept() if isinstance(text := about(folder).get("workspace"), str)]
    roots = dict.fromkeys(paths.main_of(folder) for folder in found)
    return [root for root in roots if root != paths.main_root()]


def _pointers(former: list[Path]) -> Iterator[Fault]:
    """Which execution is under way is known by the folder."""
    here = pointer_of(paths.main_root())
    for root in former:
        pointer = pointer_of(root)
        if pointer.is_file():
            name = pointer.read_text(encoding="utf-8").strip()
            what = f"{pointer.relative_to(paths.main_root())}: execution {name} was begun in {root}"
            yield what, pointer.unlink if here.exists() else partial(pointer.rename, here)


def _checkpoints(former: list[Path]) -> Iterator[Fault]:
    """A checkpoint knows the folder in which the run was interrupted."""
    for folder in all_kept():
        content = about(folder)
        before = content.get("workspace")
        now = _moved(str(before), former)
        if now is not None:
            file = folder / ABOUT
            what = f"{file.relative_to(paths.main_root())}: the run was interrupted in {before}"
            yield what, partial(files.write_json, file, {**content, "workspace": now})


def _dvc_settings(former: list[Path]) -> Iterator[Fault]:
    """Absolute paths in DVC's configuration of this workspace: the cache, remotes that are folders."""
    root = paths.main_root()
    for file in (root / ".dvc/config.local", root / ".dvc/config"):
        if not file.is_file():
            continue
        name = file.relative_to(root)
        try:
            settings = ConfigObj(os.fspath(file), encoding="utf-8")
        except (ConfigObjError, UnicodeDecodeError) as error:
            yield f"{name}: not readable ({error})", None
            continue
        for section, key, value in _values(settings):
            now = _moved(value, former)
            if now is None and section == "cache" and Path(value).is_absolute() and not Path(value).exists():
                yield f"{name}: {section} {key} = {value}: there is no such folder", None
            elif now is not None and not Path(now).exists():
                yield f"{name}: {section} {key} = {value}, a former folder of this project; {now} is not there", None
            elif now is not None:
                yield f"{name}: {section} {key} = {value}, now {now}", partial(_set, file, section, key, now)


def _values(settings: ConfigObj) -> Iterator[tuple[str, str, str]]:
    for section in settings.sections:
        for key, value in settings[section].items():
            if isinstance(value, str) and key in {"dir", "url", "keyfile", "credentialpath", "configpath"}:
                yield section, key, value


def _set(file: Path, section: str, key: str, value: str) -> None:
    settings = ConfigObj(os.fspath(file), encoding="utf-8")
    settings[section][key] = value
    settings.write()


def _dangling() -> Iterator[Fault]:
    """DVC's links into a cache that is not there any more."""
    root = paths.main_root()
    for top in ("data", "reports"):
        for path in sorted((root / top).rglob("*")):
            if path.is_symlink() and not path.exists():
                what = f"{path.relative_to(root)}: a link to {path.readlink()}, which is not there"
                yield f"{what}; `dvc checkout --relink` makes it anew", None
                return


def _environment() -> Iterator[Fault]:
    """A virtual environment has the folder in its scripts."""
    root = paths.main_root()
    file = root / ".venv/pyvenv.cfg"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    made = next((line.rpartition(" ")[2] for line in lines if line.startswith("command =")), "")
    if made and Path(made).resolve() != (root / ".venv").resolve():
        yield f".venv was made as {made}; `make setup` makes it anew", None


def _moved(text: str, former: list[Path]) -> str | None:
    """A path inside a former folder, inside this one; None for others."""
    for root in former:
        if Path(text) == root or Path(text).is_relative_to(root):
            return str(paths.main_root() / Path(text).relative_to(root))
    return None

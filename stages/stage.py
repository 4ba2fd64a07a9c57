"""What every stage does around its own work: check parameters first, inputs again before saving, errors as one line.

DVC hashes parameters and dependencies after a command has run. An edit made meanwhile would be recorded as the cause
of results that it had no part in, so a stage takes a digest of its inputs when it starts and refuses to save if they
differ.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Generic

import yaml

from stages import files, paths
from stages.errors import ArtifactError, ChangedInputError, CorpusError, LabError, ParamError, RepositoryError
from stages.execution import Execution, start_follower
from stages.params import STAGE_PARAMS, P, Params, load_params, read_params_file

_HASHED_BYTES = 16 * 2**20  # larger inputs are compared by size and time of change


class Stage(Generic[P]):
    """The parameters of a stage, and the guard over what it read.

    Raises:
        ParamError: any key of params.yaml is wrong, this stage's or another's.
        RepositoryError: DVC would lose what this stage makes.
        CorpusError, ArtifactError: what it reads is not there.
    """

    def __init__(self, name: str, kind: type[P]) -> None:
        if STAGE_PARAMS[name] is not kind:
            raise TypeError(f"stage {name} reads {STAGE_PARAMS[name].__name__}, not {kind.__name__}")
        self.name = name
        self.everything: Params = load_params(Params)  # checked as a whole, and for the record
        self.params: P = kind.model_validate({key: getattr(self.everything, key) for key in kind.model_fields})
        check_repository()
        self._inputs = _inputs(name)

    def check_inputs(self) -> None:
        """To be called right before outputs are written.

        Raises:
            ChangedInputError: parameters, code or data differ from what they were at the start.
        """
        try:
            now = _inputs(self.name)
        except ParamError:
            raise ChangedInputError(self.name, ["params.yaml"]) from None
        names = self._inputs.keys() | now.keys()
        changed = sorted(name for name in names if self._inputs.get(name) != now.get(name))
        if changed:
            raise ChangedInputError(self.name, changed)

    def digests(self) -> dict[str, str]:
        """MD5 of every file of code and data that the stage depends on, by path."""
        return {
            path.as_posix(): files.md5_file(path)
            for dep in stage_deps(self.name, read_params_file())
            for path in _files(dep)
        }

    def say(self, line: str) -> None:
        """One plain line on the terminal."""
        print(f"{self.name}: {line}", flush=True)

    def warn(self, line: str) -> None:
        print(f"{self.name}: warning: {line}", file=sys.stderr, flush=True)


def run(main: Callable[[], None]) -> None:
    """Run a stage's `main` as a process: a user's error is one message, and the journal learns of every bad end."""
    try:
        signal.signal(signal.SIGTERM, _raise_interrupt)
        main()
        gc.freeze()  # the interpreter would look for garbage among all that torch is made of before it ends
    except LabError as error:
        _close_execution("failed", str(error))
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        _close_execution("killed", f"stopped by {signal.Signals(number).name}")
        print(f"error: stopped by {signal.Signals(number).name}", file=sys.stderr, flush=True)
        sys.exit(128 + number)
    except Exception as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            _close_execution("failed", "out of memory")
            print("error: out of memory: the model or a batch of this text is too large for it", file=sys.stderr)
            sys.exit(1)
        _close_execution("failed", f"{type(error).__name__}: {error}")
        raise


def check_repository() -> None:
    """Refuse to work where DVC would lose the result without a word.

    Raises:
        RepositoryError: a queued or temporary experiment of a shallow clone.
    """
    if paths.in_temporary_experiment() and (paths.main_root() / ".git" / "shallow").is_file():
        raise RepositoryError(
            "this repository is a shallow clone, in which DVC loses queued and temporary experiments although it "
            "reports success; run `git fetch --unshallow` first, or `dvc exp run` without --queue and --temp"
        )


def _raise_interrupt(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


def _close_execution(event: str, message: str) -> None:
    execution = Execution.current()
    if execution is not None and execution.ours():  # not one that an earlier `dvc` left open
        execution.close(event, message)
        start_follower(execution)


def _inputs(name: str) -> dict[str, Any]:
    """What the stage depends on, by name: values of its parameters, digests of its code and data."""
    raw = read_params_file()
    found: dict[str, Any] = {f"params.yaml ({key})": raw.get(key) for key in STAGE_PARAMS[name].model_fields}
    for dep in stage_deps(name, raw):
        try:
            dep.stat()
        except OSError as error:
            if dep == Path(str(raw.get("corpus"))):
                raise _unreadable_corpus(dep, error) from None
            raise ArtifactError(dep, f"not there, yet stage {name} reads it") from None
        found |= {path.as_posix(): _signature(path) for path in _files(dep)}
    return found


def _unreadable_corpus(corpus: Path, error: OSError) -> CorpusError:
    """No stage makes it: what helps is another than where an output is missing."""
    if not isinstance(error, FileNotFoundError):
        return CorpusError(corpus, f"cannot be read: {error.strerror}")
    if paths.in_temporary_experiment():
        problem = f"not in this experiment, which has what git and DVC keep; `dvc add {corpus}` keeps it"
        return CorpusError(corpus, problem)
    return CorpusError(corpus, "no such file or folder; `corpus` in params.yaml names it")


def _files(dep: Path) -> list[Path]:
    """A file, or all files of a folder."""
    return [path for path in sorted(dep.rglob("*")) if path.is_file()] if dep.is_dir() else [dep]


def stage_deps(name: str, raw_params: dict[str, Any]) -> list[Path]:
    """The dependencies of a stage as dvc.yaml lists them, with `${key}` replaced."""
    stage = yaml.safe_load(paths.PIPELINE.read_text(encoding="utf-8"))["stages"][name]
    return [Path(str(raw_params[dep[2:-1]]) if dep.startswith("${") else dep) for dep in stage["deps"]]


def _signature(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size}:{stat.st_mtime_ns}" if stat.st_size > _HASHED_BYTES else files.md5_file(path)

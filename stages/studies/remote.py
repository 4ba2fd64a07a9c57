"""Runs one variant for somebody else: on any machine that reaches the git remote and DVC's, whatever sent it there.

A clone of the very commit, the recorded changes on top, `dvc exp run` in it, the results pushed, the clone removed. The
installation of the machine gives this module alone; what trains is the code of the clone. All of it happens in a
process of its own, which ends with the one that was asked, also when that is killed: training has saved a checkpoint
then, which counts where the run state is on shared storage (NOAM_RUNSTATE).

Each result is pushed in one step with a ref that says whose it is, `refs/noam/done/<key>`. That ref is never moved, so
that of two machines with the same variant only the first one counts.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from stages import files
from stages.errors import ArtifactError, CorpusError, LabError, TrainingError
from stages.repository import git
from stages.studies import other_code, scratch
from stages.studies.messages import DONE, Result, Work
from stages.studies.processes import last_words
from stages.studies.workspace import ref_of

_WORK, _RESULT, _LOG = "work.pickle", "result.pickle", "log.txt"  # in the scratch folder
_LOOK_SECONDS, _SAVE_SECONDS, _SPOT_SECONDS = 0.3, 10.0, 120.0
_VERSIONS = ("noam-lab", "torch", "dvc")
# No store: an address that nobody answers, so that the last stage says so at once. The one who asked has a store.
_NOWHERE = "http://127.0.0.1:9"


def run_variant(work: Work) -> Result:
    """Run a variant and push what comes of it.

    Returns:
        The commit of its experiment, or the problem: whatever fails is told, nothing is raised.
    """
    scratch.remove_leftovers()
    about = Result(work.key, host=platform.node(), versions=versions())
    try:
        with scratch.folder() as folder:
            return replace(_in_a_process(work, folder), host=about.host, versions=about.versions)
    except LabError as error:
        return replace(about, problem=str(error))


def versions() -> dict[str, str]:
    """Of the packages that a result may depend on, as they are installed here."""
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def _in_a_process(work: Work, folder: Path) -> Result:
    files.write_bytes(folder / _WORK, pickle.dumps(work))
    found = [os.fspath(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]  # the module that runs now
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, found))}
    with open(folder / _LOG, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "stages.studies.remote", os.fspath(folder), str(os.getpid())],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it has left, where it was killed itself
        process.wait()
    try:
        result: Result = pickle.loads((folder / _RESULT).read_bytes())  # noqa: S301 (we wrote it)
    except OSError:
        how = f"killed by signal {-process.returncode}" if process.returncode < 0 else last_words(folder / _LOG)
        return Result(work.key, problem=how)
    return result


def perform(work: Work, folder: Path) -> Result:
    """The work itself, in the process that does nothing else.

    Raises:
        LabError: it failed.
    """
    if known := _pushed(work):
        return Result(work.key, known, again=True)
    clone, log = folder / "clone", folder / "stages.log"
    _make_clone(work, clone)
    environment = _environment(work)
    _set_remote(work, clone)
    if work.pulled:
        other_code.dvc(clone, log, "pull", "--quiet", *work.pulled, env=environment)
    _check_inputs(work, clone)
    _override(work, clone)
    spot = _start_spot_check(work, clone, environment)
    try:
        other_code.dvc(clone, log, "exp", "run", "--quiet", "--name", work.name, env=environment)
        other_code.dvc(clone, log, "push", "--quiet", "--remote", work.dvc_remote, env=environment)
        found, again = _push(work, clone)
    finally:
        checked = _spot_of(spot)
    notes = _notes(log) if environment["MLFLOW_TRACKING_URI"] != _NOWHERE else ()
    return Result(work.key, found, spot=checked, notes=notes, again=again)


def _make_clone(work: Work, clone: Path) -> None:
    """The commit with the changes of whoever asked."""
    git("clone", "--quiet", "--no-checkout", work.url, os.fspath(clone))
    here = ("-C", os.fspath(clone))
    if work.base_ref:
        git(*here, "fetch", "--quiet", "origin", work.base_ref)
    git(*here, "checkout", "--quiet", "--detach", work.base)
    if work.diff:
        patch = clone.with_suffix(".diff")
        files.write_bytes(patch, work.diff)
        git(*here, "apply", "--index", "--binary", "--whitespace=nowarn", os.fspath(patch))


def _set_remote(work: Work, clone: Path) -> None:
    """DVC's remote as it is for whoever asked; what is secret of it, this machine has to know."""
    from configobj import ConfigObj

    local = ConfigObj(os.fspath(clone / ".dvc/config.local"), encoding="utf-8")
    section = f'remote "{work.dvc_remote}"'
    local.merge({"core": {"remote": work.dvc_remote}, section: dict(work.dvc_settings)})
    local.write()


def _check_inputs(work: Work, clone: Path) -> None:
    """Code and text are those of whoever asked.

    Raises:
        CorpusError, ArtifactError: a file is missing or another one.
    """
    for name, md5 in work.inputs.items():
        path = clone / name  # `name` itself where that is absolute
        kind = ArtifactError if name.startswith("stages/") else CorpusError
        if not path.is_file():
            raise kind(name, f"not on {platform.node()}, where the variant was to run")
        if files.md5_file(path) != md5:
            raise kind(name, f"another one on {platform.node()} than where the study was started")


def _override(work: Work, clone: Path) -> None:
    from dvc.utils.serialize import modify_yaml  # type: ignore[import-untyped]

    if work.overrides:
        with modify_yaml(os.fspath(clone / "params.yaml")) as content:
            content.update(work.overrides)


def _environment(work: Work) -> dict[str, str]:
    found = other_code.environment()
    found["MLFLOW_TRACKING_URI"] = work.tracking_uri or found.get("MLFLOW_TRACKING_URI") or _NOWHERE
    if found["MLFLOW_TRACKING_URI"] == _NOWHERE:
        found["NOAM_LIVE"] = "off"
    if work.run_state:
        found.setdefault("NOAM_RUNSTATE", work.run_state)
    return found


def _push(work: Work, clone: Path) -> tuple[str, bool]:
    """The experiment and the ref that says that it is done, both or neither.

    Returns:
        The commit that counts, and whether it is another one, of a machine that was faster.

    Raises:
        RepositoryError: the remote refuses.
    """
    here = ("-C", os.fspath(clone))
    made = git(*here, "rev-parse", ref_of(work.name, work.base))
    name = work.name
    for attempt in range(2):
        refs = [f"{made}:{ref_of(name, work.base)}", f"{made}:{DONE}{work.key}"]
        try:
            git(*here, "push", "--quiet", "--atomic", "origin", *refs)
        except LabError:
            if known := _pushed(work):
                return known, known != made
            if attempt:
                raise
            name = f"{work.name}-{work.key[:8]}"  # the name was taken meanwhile, by other code
        else:
            break
    return made, False


def _pushed(work: Work) -> str:
    """The commit that the remote has for this key, or ''."""
    return git("ls-remote", work.url, f"{DONE}{work.key}").partition("\t")[0]


def _start_spot_check(work: Work, clone: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """With the code of the clone, in its way to compute."""
    return subprocess.Popen(
        [sys.executable, "-m", "stages.studies.spot", work.numerics],
        cwd=clone,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _spot_of(process: subprocess.Popen[bytes]) -> dict[str, str]:
    """What the spot check gave; {} where that code has none, or it failed."""
    try:
        output, _ = process.communicate(timeout=_SPOT_SECONDS)
        found: dict[str, str] = json.loads(output)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {}
    except ValueError:
        return {}
    return found


def _notes(log: Path) -> tuple[str, ...]:
    """What the last stage warned of: MLflow could not be reached."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return tuple(line.removeprefix("track: warning: ") for line in lines if line.startswith("track: warning: "))


class _Watch(threading.Thread):
    """Ends everything with the process that asked: with signals, which training answers with a checkpoint."""

    def __init__(self, parent: int, folder: Path) -> None:
        super().__init__(daemon=True)
        self._parent, self._folder = parent, folder
        self.ending = False

    def run(self) -> None:
        while os.getppid() == self._parent:
            time.sleep(_LOOK_SECONDS)
        self.ending = True
        below = psutil.Process().children(recursive=True)
        for process in below:
            try:
                process.terminate()
            except psutil.Error:
                continue
        psutil.wait_procs(below, timeout=_SAVE_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)
        os.killpg(os.getpid(), signal.SIGKILL)


def main() -> None:
    """`python -m stages.studies.remote FOLDER PARENT`: the work of a scratch folder."""
    folder = Path(sys.argv[1])
    os.environ["GIT_TERMINAL_PROMPT"] = "0"  # nobody is there to answer
    work: Work = pickle.loads((folder / _WORK).read_bytes())  # noqa: S301 (our parent wrote it)
    watch = _Watch(int(sys.argv[2]), folder)
    watch.start()
    try:
        result = perform(work, folder)
    except TrainingError as error:
        result = Result(work.key, problem=f"dvc: {error}")
    except LabError as error:
        result = Result(work.key, problem=str(error))
    if watch.ending:  # what failed was ended by us
        watch.join()
    files.write_bytes(folder / _RESULT, pickle.dumps(result))


if __name__ == "__main__":
    main()

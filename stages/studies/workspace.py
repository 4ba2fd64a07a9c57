"""Temporary copies of this workspace, each for one variant, and what DVC and git are told of their results.

They lie where DVC has its own temporary experiments, so that journals and the MLflow store are found in the main
workspace. A result becomes an experiment the way DVC makes one: outputs in its cache, a commit with dvc.lock,
params.yaml and the metrics on top of HEAD, and a ref below refs/exps, by which show, apply, branch and push know it.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import uuid
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from stages import files, paths
from stages.errors import RepositoryError, StudyError
from stages.params import Params, read_params_file
from stages.repository import answer, git

_STAGES = ("prepare", "vocab", "train", "evaluate", "plots")
DATA = (paths.PREPARED, paths.VOCAB, paths.CORPUS_REPORT)  # what prepare and vocab make


@contextmanager
def alone() -> Iterator[None]:
    """No other process runs a study in this workspace meanwhile.

    Raises:
        RepositoryError: one does.
    """
    # Of this workspace on this machine: the run state may be shared with others, of which one may have died.
    place = files.sha256_json([platform.node(), str(paths.main_root())])[:16]
    path = paths.run_state() / "studies" / f"lock-{place}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by the processes of runs, as flock is
        except OSError:
            raise RepositoryError(
                "another `noam study run` is under way in this workspace; `noam study status FILE` says how far it is"
            ) from None
        yield


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """The folder is the current one until the block ends."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def baseline() -> str:
    """The commit that experiments start from.

    Raises:
        RepositoryError: no repository of git, no commit, or a shallow clone, of which DVC loses experiments.
    """
    try:
        head = git("rev-parse", "--verify", "HEAD")
    except RepositoryError:
        raise RepositoryError(
            "a study needs a git repository with a commit, on which DVC puts its experiments"
        ) from None
    if below := git("rev-parse", "--show-prefix"):
        raise RepositoryError(f"a study is run in the top folder of the repository, and this is its folder {below}")
    if git("rev-parse", "--is-shallow-repository") == "true":
        raise RepositoryError(
            "this repository is a shallow clone, of which DVC loses experiments; run `git fetch --unshallow`"
        )
    return head


def make_workspace(parent: Path, params: Params) -> Path:
    """A copy of the tracked files as they are now, with these parameters, that shares DVC's cache."""
    folder = parent / uuid.uuid4().hex[:8]
    for name in filter(None, git("ls-files", "-z").split("\0")):
        if Path(name).is_file() or Path(name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, folder / name, follow_symlinks=False)
    complete(folder, params)
    return folder


def complete(folder: Path, params: Params, *, scm: bool = False) -> None:
    """Give a copy what git does not: the text, DVC's cache, these parameters; with `scm` it has a git of its own."""
    _link_corpus(Path(params.corpus), folder)
    _share_cache(folder, scm)
    write_params(folder / paths.PARAMS, params, others=not scm)


def _link_corpus(corpus: Path, folder: Path) -> None:
    """What git does not track of the text; of a folder it may have only some files."""
    for path in [] if corpus.is_absolute() else sorted(corpus.rglob("*")) if corpus.is_dir() else [corpus]:
        if path.is_file() and not (folder / path).exists():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).symlink_to(path.resolve())


def _share_cache(folder: Path, scm: bool) -> None:
    """The copy has the local configuration of this workspace and its cache."""
    from configobj import ConfigObj  # with which DVC reads it; its own way to write knows ASCII alone

    local = folder / ".dvc/config.local"
    if Path(".dvc/config.local").is_file():
        shutil.copy2(".dvc/config.local", local)
    config = ConfigObj(os.fspath(local), encoding="utf-8")
    config.merge({"core": {"no_scm": str(not scm).lower()}, "cache": {"dir": os.fspath(cache_folder(Path.cwd()))}})
    config.write()


def write_params(path: Path, params: Params, *, others: bool = True) -> None:
    """Put values into a params.yaml, whose comments and order stay, as `dvc exp run -S` does.

    Raises:
        StudyError: without `others`, a value that is not the default, of a key that the file does not have.
    """
    from dvc.utils.serialize import modify_yaml  # type: ignore[import-untyped]

    changed = changed_params(read_params_file(path), params, others=others, file=path.name)
    with modify_yaml(str(path)) as content:
        content.update(changed)


def changed_params(
    before: Mapping[str, Any], params: Params, *, others: bool = True, file: str = paths.PARAMS.name
) -> dict[str, Any]:
    """The values that a params.yaml has to get.

    Raises:
        StudyError: as `write_params`.
    """
    values = params.model_dump()
    for key in [] if others else values.keys() - before.keys():
        default = Params.model_fields[key].default
        if values.pop(key) != default:
            raise StudyError(file, f"{key}: the code of that revision has no such parameter")
    return {key: value for key, value in values.items() if key not in before or before[key] != value}


def share_data(source: Path, target: Path) -> None:
    """The outputs of prepare and vocab of one copy in another one with the same data."""
    for path in DATA:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        if (source / path).is_dir():
            shutil.copytree(source / path, target / path, copy_function=os.link)
        else:
            shutil.copy2(source / path, target / path)


def commit_outputs(stages: Sequence[str] = _STAGES) -> None:
    """Bring the outputs of stages, in the current folder, into DVC's cache and into dvc.lock."""
    from dvc.repo import Repo  # type: ignore[import-untyped]

    with Repo(os.fspath(Path.cwd())) as repo:
        for stage in stages:
            repo.commit(stage, force=True)


def make_experiment(folder: Path, name: str, base: str) -> str:
    """A DVC experiment of what lies in a copy, on top of `base`; its commit."""
    index = folder.with_name(f"{folder.name}.index")
    environment = {"GIT_INDEX_FILE": str(index)}
    try:
        shutil.copy2(Path(git("rev-parse", "--git-path", "index")), index)  # with what was added and not committed yet
        inside_of = ("--work-tree", str(folder))
        git(*inside_of, "add", "-u", variables=environment)
        git(*inside_of, "add", "-f", str(paths.LOCK), str(paths.METRICS), variables=environment)
        tree = git("write-tree", variables=environment)
        digest = files.sha256_json([base, tree])
        commit = git("commit-tree", tree, "-p", base, "-m", f"dvc: commit experiment {digest}", variables=_identity())
    finally:
        index.unlink(missing_ok=True)
    git("update-ref", ref_of(name, base), commit)
    return commit


def ref_of(name: str, base: str) -> str:
    """Where DVC keeps an experiment."""
    return f"refs/exps/{base[:2]}/{base[2:]}/{name}"


def name_of(commit: str, base: str, name: str) -> str | None:
    """What DVC calls an experiment: `name`, or that with a number where it was taken; None where it is not listed."""
    prefix = ref_of("", base)
    listed = git("for-each-ref", "--points-at", commit, "--format=%(refname)", prefix.rstrip("/")).splitlines()
    ours = [
        ref.removeprefix(prefix) for ref in listed if re.fullmatch(rf"{re.escape(name)}(\.\d+)?", ref[len(prefix) :])
    ]
    return ours[0] if ours else None


def free_name(name: str, base: str, taken: Container[str] = ()) -> str:
    """The name of an experiment, with a number where an earlier state of the code has taken it here, or a ref there."""
    number, free = 1, name
    while (ref := ref_of(free, base)) in taken or commit_of(ref):
        number += 1
        free = f"{name}.{number}"
    return free


def name_again(commit: str, base: str, name: str) -> None:
    """Give an experiment, made for another study or removed from DVC's list, the name that it has in this one."""
    if name_of(commit, base, name) is None:
        git("update-ref", ref_of(free_name(name, base), base), commit)


def commit_of(ref: str) -> str:
    """The commit of a ref or name; '' where there is none."""
    return answer("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}") or ""


@cache
def cache_folder(root: Path) -> Path:
    """DVC's cache of a workspace; its files are in files/md5."""
    from dvc.repo import Repo

    with Repo(os.fspath(root)) as repo:
        return Path(repo.cache.local_cache_dir)


def _identity() -> Mapping[str, Any]:
    """Somebody for git to name, where nobody is configured; DVC does so too."""
    if answer("var", "GIT_COMMITTER_IDENT") is not None:
        return {}
    who = {"NAME": "noam-lab", "EMAIL": "noam-lab@localhost"}
    return {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}

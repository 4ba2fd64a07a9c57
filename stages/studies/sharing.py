"""What other machines need of this workspace, and where they find it: the git remote and DVC's.

Whoever starts a study elsewhere pushes what the remotes lack (a commit to a ref of ours, so that no branch moves; a
text that DVC tracks), and fetches each experiment when it is done.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from stages import paths
from stages.errors import ArtifactError, LabError, RepositoryError, StudyError
from stages.params import Params, read_params_file
from stages.repository import answer, git
from stages.studies import done, workspace
from stages.studies.messages import BASE, DONE, Work
from stages.studies.plan import Variant

_SECRET = re.compile(r"secret|password|passphrase|token|key|credential|connection_string|ask_", re.IGNORECASE)
_PLAIN_DIFF = ("--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")


@dataclass(frozen=True)
class Remotes:
    """The two remotes of this workspace.

    Attributes:
        git: name of git's.
        url: of that.
        dvc: name of DVC's default one.
        settings: of that, without what is secret.
        withheld: names of settings that are.
    """

    git: str
    url: str
    dvc: str
    settings: Mapping[str, str]
    withheld: tuple[str, ...]

    @classmethod
    def of_workspace(cls) -> Remotes:
        """Those that are configured: of git the one of the branch, else `origin`; of DVC the default one.

        Raises:
            RepositoryError: one is missing; with the command that sets it.
        """
        from dvc.repo import Repo  # type: ignore[import-untyped]

        names = git("remote").splitlines()
        branch = git("rev-parse", "--abbrev-ref", "HEAD")
        upstream = _config(f"branch.{branch}.remote")
        name = upstream if upstream in names else names[0] if len(names) == 1 else "origin"
        if name not in names:
            has = f"none called origin, and {branch} follows none of {', '.join(names)}" if names else "none"
            raise RepositoryError(
                f"other machines get the code from a git remote, and this repository has {has}: "
                "`git remote add origin URL` sets it"
            )
        url = git("remote", "get-url", name)
        with Repo(os.fspath(Path.cwd())) as repo:
            dvc = repo.config.get("core", {}).get("remote", "")
            settings = dict(repo.config.get("remote", {}).get(dvc, {}))
        if not settings:
            raise RepositoryError(
                "results come back through a remote of DVC, and there is no default one: "
                "`dvc remote add -d NAME URL` sets it"
            )
        secret = tuple(sorted(key for key in settings if _SECRET.search(key)))
        plain = {key: str(value) for key, value in settings.items() if key not in secret}
        return cls(name, _absolute(url), dvc, plain, secret)

    @cached_property
    def refs(self) -> dict[str, str]:
        """The commit of each ref in the git remote, as it was when first asked for."""
        lines = git("ls-remote", self.git).splitlines()
        return {ref: commit for commit, ref in (line.split("\t") for line in lines)}

    def known(self, key: str) -> str:
        """The commit with the results of a key that somebody has pushed; ''."""
        return self.refs.get(f"{DONE}{key}", "")

    def provide(self, commit: str) -> str:
        """See to it that the git remote has a commit.

        Returns:
            The ref of ours that it has it by; '' where a branch or a tag contains it.
        """
        ours = f"{BASE}{commit}"
        if ours in self.refs:
            return ours
        tips = {found for ref, found in self.refs.items() if ref.startswith(("refs/heads/", "refs/tags/"))}
        if any(_contains(tip, commit) for tip in tips):
            return ""
        git("push", "--quiet", self.git, f"{commit}:{ours}")
        return ours

    def free_name(self, name: str, base: str) -> str:
        """The name of an experiment, with a number where other code has taken it here or there."""
        return workspace.free_name(name, base, self.refs)

    def fetch(self, variant: Variant, seeds: Sequence[int], name: str, commit: str) -> done.Done:
        """Bring a result here: the experiment under its name, the files into DVC's cache.

        Raises:
            LabError: it is not there, or it is not one of this variant.
        """
        from dvc.exceptions import DvcException  # type: ignore[import-untyped]
        from dvc.repo import Repo

        key = done.key_of(variant, seeds)
        if not workspace.commit_of(commit):
            git("fetch", "--quiet", "--no-tags", self.git, f"{DONE}{key}")
        _check(variant, seeds, commit, f"{DONE}{key}")
        base = git("rev-parse", f"{commit}^")
        try:
            with Repo(os.fspath(Path.cwd())) as repo:
                repo.fetch(remote=self.dvc, revs=[commit], workspace=False)
        except DvcException as error:
            raise ArtifactError(f"remote {self.dvc}", f"results of {name} could not be fetched ({error})") from None
        _check_there(commit, name, self.dvc)
        workspace.name_again(commit, base, name)
        return done.Done(commit=commit, baseline=base)


def work_of(variant: Variant, seeds: Sequence[int], name: str, head: str, remotes: Remotes) -> Work:
    """All that a machine needs to run a variant. The remotes have what it refers to afterwards.

    Raises:
        StudyError: a text that no other machine could get; a parameter that the code of a revision does not have.
        RepositoryError: the remote refuses.
    """
    base = variant.commit or head
    params = variant.with_seeds(seeds)
    pulled, in_git = _provide_corpus(params.corpus, remotes.dvc)
    below = [params.corpus] if in_git else []
    if variant.commit:
        # The text is that of the workspace, the code that of the revision.
        diff = _diff(base, below) if below else b""
        raw = yaml.safe_load(git("show", f"{base}:./{paths.PARAMS.as_posix()}"))
    else:
        diff = _diff(base, [])
        raw = read_params_file(paths.PARAMS)
    return Work(
        key=done.key_of(variant, seeds),
        name=remotes.free_name(name, base),
        url=remotes.url,
        base=base,
        base_ref=remotes.provide(base),
        diff=diff,
        overrides=workspace.changed_params(raw, params, others=not variant.commit),
        inputs=done.inputs_of(variant, params.corpus),
        pulled=pulled,
        dvc_remote=remotes.dvc,
        dvc_settings=remotes.settings,
        numerics=params.numerics,
        tracking_uri=_shared_address(),
        run_state=os.environ.get("NOAM_RUNSTATE", ""),
    )


def _provide_corpus(corpus: str, remote: str) -> tuple[tuple[str, ...], bool]:
    """See to it that other machines can get a text.

    Returns:
        The `.dvc` files to be pulled, and whether git has it.

    Raises:
        StudyError: neither git nor DVC has it.
    """
    path = Path(corpus)
    if path.is_absolute():
        return (), False
    tracked = next((f for one in [path, *path.parents] if (f := Path(f"{one}.dvc")).is_file()), None)
    if tracked is not None:
        _push_data(tracked, corpus, remote)
        return (tracked.as_posix(),), False
    known = set(filter(None, git("ls-files", "-z", "--", corpus).split("\0")))
    files = [one for one in sorted(path.rglob("*")) if one.is_file()] if path.is_dir() else [path]
    if unknown := [one for one in files if one.as_posix() not in known]:
        raise StudyError(
            unknown[0],
            f"other machines cannot get this text: `git add {corpus}`, or for a large one `dvc add {corpus}`, "
            "keeps it; an absolute path is read as it is there",
        )
    return (), True


def _push_data(tracked: Path, corpus: str, remote: str) -> None:
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    if not git("ls-files", "--", str(tracked)):
        raise StudyError(corpus, f"other machines need {tracked}: `git add {tracked}` keeps it")
    try:
        with Repo(os.fspath(Path.cwd())) as repo:
            if repo.status(targets=[str(tracked)]):
                raise StudyError(corpus, f"differs from what {tracked} says; `dvc add {corpus}` renews that")
            repo.push(targets=[str(tracked)], remote=remote)
    except DvcException as error:
        raise StudyError(corpus, f"DVC cannot push it to remote {remote} ({error})") from None


def _diff(base: str, below: Sequence[str]) -> bytes:
    """What the working tree has that a commit has not: of tracked files, and of those that were added."""
    command = ["git", "diff", *_PLAIN_DIFF, "--src-prefix=a/", "--dst-prefix=b/", base, "--", *below]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode:
        raise RepositoryError(f"git diff: {made.stderr.decode(errors='replace').strip()}")
    return made.stdout


def _check(variant: Variant, seeds: Sequence[int], commit: str, ref: str) -> None:
    """What a ref of the remote names was made from this code with these parameters.

    Raises:
        RepositoryError: it was not; whoever may write to the remote may have put anything there.
    """
    params = variant.with_seeds(seeds)
    locked = yaml.safe_load(git("show", f"{commit}:./{paths.LOCK.as_posix()}"))["stages"]
    inputs = done.inputs_of(variant, params.corpus)
    wanted = params.model_dump()
    for stage in locked.values():
        deps = {dep["path"]: dep["md5"] for dep in stage.get("deps", []) if dep["path"] in inputs}
        own: dict[str, Any] = stage.get("params", {}).get(paths.PARAMS.as_posix(), {})
        differing = [path for path, md5 in deps.items() if inputs[path] != md5]
        differing += [key for key, value in own.items() if key in wanted and not _equal(value, wanted[key], key)]
        if differing:
            raise RepositoryError(
                f"{ref} in the git remote is not what it claims to be: {differing[0]} is another one; "
                f"`git push REMOTE :{ref}` removes it"
            )


def _equal(locked: Any, wanted: Any, key: str) -> bool:
    """The same value in whatever spelling."""
    if locked == wanted:
        return True
    try:
        return bool(getattr(Params.model_validate({key: locked}), key) == wanted)
    except ValueError:
        return False


def _check_there(commit: str, name: str, remote: str) -> None:
    from stages.studies.collect import Results

    try:
        Results.of(commit).read(paths.REPLICAS)
    except LabError:
        raise ArtifactError(
            f"remote {remote}",
            f"does not have the results of {name}: the machine that made them may write to another place",
        ) from None


def _contains(tip: str, commit: str) -> bool:
    """A commit is, or is below, one that this repository knows."""
    return answer("merge-base", "--is-ancestor", commit, tip) is not None


def _config(key: str) -> str:
    return answer("config", key) or ""


def _absolute(url: str) -> str:
    """Of a folder its whole path; other addresses as they are."""
    return os.fspath(Path(url).resolve()) if "://" not in url and Path(url).is_dir() else url


def _shared_address() -> str:
    """Of MLflow's store, where it is one that other machines may reach; '' for one of this workspace."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    relative = given.startswith("sqlite:///") and not given.startswith("sqlite:////")
    return "" if relative or ("://" not in given and not given.startswith("/")) else given

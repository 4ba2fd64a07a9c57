"""What has been run, for any study: found again by all that a result depends on, so that nothing is done twice.

Under `.runstate/studies/` of the main workspace:

    done/<key>.json      the experiment of a variant with its seeds: its commit, the commit below it, when it was made
    failed/<key>.json    what went wrong, of one that was tried and tried again
    sent/<key>.json      how far one is that runs on another machine, and the process that waits for it
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict

from stages import files, paths
from stages.execution import Process
from stages.params import STAGE_PARAMS, WITHOUT_EFFECT
from stages.stage import stage_deps
from stages.studies.plan import Variant
from stages.studies.workspace import commit_of


class Done(BaseModel):
    """An experiment of DVC with the results of a variant.

    Attributes:
        commit: of the experiment.
        baseline: the commit that it is on top of.
        note: what is strange about it: a machine that computes otherwise, or with other versions.
    """

    model_config = ConfigDict(frozen=True)
    commit: str
    baseline: str
    note: str = ""


def key_of(variant: Variant, seeds: Sequence[int]) -> str:
    """A digest of parameters, seeds, code and corpus, these as they were when this process first asked."""
    params = variant.with_seeds(seeds)
    raw = params.model_dump(exclude=WITHOUT_EFFECT) | {"replicas": params.replicas}
    read = inputs_of(variant, params.corpus)
    if variant.commit:
        read = {"code": variant.commit} | read
    return files.sha256_json([raw, read])[:24]


def inputs_of(variant: Variant, corpus: str) -> dict[str, str]:
    """MD5 of what a variant reads of this workspace, by path: code and text, or of one with other code the text."""
    read = inputs(Path.cwd(), corpus)
    return {path: md5 for path, md5 in read.items() if not variant.commit or path.startswith(corpus)}


@cache
def inputs(folder: Path, corpus: str) -> dict[str, str]:
    """MD5 of the code and the text in a folder, by path; taken once, so that an edit meanwhile has no part in it."""
    read = {dep for name in STAGE_PARAMS if name != "track" for dep in stage_deps(name, {"corpus": corpus})}
    kept = sorted(dep for dep in read if dep.is_relative_to("stages") or dep == Path(corpus))
    return {str(path): files.md5_file(folder / path) for dep in kept for path in _files(dep) if path.is_file()}


def find(variant: Variant, seeds: Sequence[int]) -> Done | None:
    """The experiment of a variant, if it was made and git still has it."""
    try:
        done = Done.model_validate_json(_file("done", variant, seeds).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return done if commit_of(done.commit) else None


def record(variant: Variant, seeds: Sequence[int], done: Done) -> None:
    files.write_json(_file("done", variant, seeds), done.model_dump(exclude_defaults=True))
    _file("failed", variant, seeds).unlink(missing_ok=True)


class Sent(BaseModel):
    """A variant that another machine is to run.

    Attributes:
        state: in words.
        waiting: the process that waits for it.
    """

    model_config = ConfigDict(frozen=True)
    state: str
    waiting: Process


def record_sent(variant: Variant, seeds: Sequence[int], state: str) -> None:
    """How far it is; '' that it is back, or given up."""
    file = _file("sent", variant, seeds)
    if state:
        files.write_json(file, Sent(state=state, waiting=Process.of(psutil.Process())).model_dump())
    else:
        file.unlink(missing_ok=True)


def sent(variant: Variant, seeds: Sequence[int]) -> str:
    """How far one is that some living process waits for; ''."""
    try:
        found = Sent.model_validate_json(_file("sent", variant, seeds).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return found.state if found.waiting.alive() else ""


def record_failure(variant: Variant, seeds: Sequence[int], problems: dict[str, str]) -> None:
    """By seed, what went wrong with its run; of the stages after it, by their names."""
    files.write_json(_file("failed", variant, seeds), problems)


def failure(variant: Variant, seeds: Sequence[int]) -> dict[str, str]:
    """What went wrong when it was last tried; {} where nothing did."""
    try:
        content: Any = json.loads(_file("failed", variant, seeds).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(problem) for key, problem in content.items()} if isinstance(content, dict) else {}


def in_words(problems: dict[str, str]) -> str:
    """Who failed and how, with one entry for all that failed alike."""
    alike: dict[str, list[str]] = {}
    for who, what in problems.items():
        alike.setdefault(what, []).append(who)
    return "; ".join(f"{', '.join(sorted(names))}: {what}" for what, names in alike.items())


def _file(kind: str, variant: Variant, seeds: Sequence[int]) -> Path:
    return paths.run_state() / "studies" / kind / f"{key_of(variant, seeds)}.json"


def _files(dep: Path) -> list[Path]:
    return [path for path in sorted(dep.rglob("*")) if path.is_file()] if dep.is_dir() else [dep]

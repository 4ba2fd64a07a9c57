"""Results of experiments → the tables that comparisons are made from (see `stages.analysis.question`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from stages import paths
from stages.errors import ArtifactError, StudyError, nearest
from stages.execution import Execution
from stages.repository import git
from stages.studies.workspace import cache_folder
from stages.tracking import outbox
from stages.tracking.fingerprint import fingerprint, outputs

_RATES = 600  # points of a learning-rate curve
NUMBERS = ["value", "start", "diverged_at", "steps_to_target", "seconds_to_target"]


@dataclass(frozen=True)
class Source:
    """Where the runs of a variant are.

    Attributes:
        variant: its name.
        levels: label of each factor.
        seeds: that it should have; () for those that it has.
        commit: of the experiment; '' where there is none, so that all its seeds are missing.
    """

    variant: str
    levels: Mapping[str, str]
    seeds: Sequence[int]
    commit: str


@dataclass(frozen=True)
class Tables:
    """The three tables of `stages.analysis.question`."""

    runs: pd.DataFrame
    curves: pd.DataFrame
    rates: pd.DataFrame

    @classmethod
    def of(cls, runs: list[dict[str, Any]], curves: list[dict[str, Any]], rates: list[dict[str, Any]]) -> Tables:
        """From their rows, with None for what is not known."""
        table = pd.DataFrame(runs)
        table[NUMBERS] = table[NUMBERS].astype(float)
        return cls(
            table,
            pd.DataFrame(curves, columns=["variant", "seed", "step", "loss"]),
            pd.DataFrame(rates, columns=["variant", "step", "lr"]),
        )


def tables_of(sources: Iterable[Source], metric: str, target: float | None) -> Tables:
    """Read what experiments have.

    Args:
        sources: one a variant.
        metric: such as 'valid.loss'.
        target: measured loss that counts for the steps and seconds to it.

    Raises:
        ArtifactError: DVC's cache does not have the results of an experiment.
        StudyError: they have no such metric.
    """
    runs: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    rates: list[dict[str, Any]] = []
    for source in sources:
        if not source.commit:
            runs += [_row(source, seed) for seed in source.seeds]
            continue
        results = Results.of(source.commit)
        replicas = {replica["seed"]: replica for replica in results.read(paths.REPLICAS)}
        clocks = _clocks(results.lock_text)
        for seed in source.seeds or replicas:
            if seed not in replicas:
                runs.append(_row(source, seed))
                continue
            measured = results.read(results.of_seed(seed, len(replicas), paths.VALIDATION))
            curve = [(row["step"], row["loss"]) for row in measured if row["loss"] is not None]
            curves += [{"variant": source.variant, "seed": seed, "step": step, "loss": loss} for step, loss in curve]
            reached = steps_to(target, curve)
            runs.append(
                _row(source, seed)
                | {
                    "value": _value(replicas[seed], metric),
                    "start": _start(replicas[seed], metric, curve),
                    "diverged_at": replicas[seed].get("diverged_at"),
                    "steps_to_target": reached,
                    "seconds_to_target": clocks.get(seed, {}).get(reached),
                }
            )
        history = results.read(paths.HISTORY)
        every = math.ceil(len(history) / _RATES) or 1
        kept = [row for i, row in enumerate(history) if i % every == 0 or i == len(history) - 1]
        rates += [{"variant": source.variant, "step": row["step"], "lr": row["lr"]} for row in kept]
    return Tables.of(runs, curves, rates)


def steps_to(target: float | None, curve: Iterable[tuple[int, float]]) -> int | None:
    """The step of the first measurement with a loss of at most the target; None where there is none."""
    return next((step for step, loss in curve if target is not None and loss <= target), None)


@dataclass(frozen=True)
class Results:
    """The files of an experiment, out of git and DVC's cache.

    Attributes:
        commit: of git.
        lock_text: its dvc.lock.
        md5: of each output.
    """

    commit: str
    lock_text: str
    md5: Mapping[Path, str]

    @classmethod
    def of(cls, commit: str) -> Results:
        """Those of a commit.

        Raises:
            RepositoryError: it has no dvc.lock.
        """
        lock = git("show", f"{commit}:./{paths.LOCK.as_posix()}")
        return cls(commit, lock, outputs(lock))

    @property
    def params(self) -> dict[str, Any]:
        """Parameters that the results were made with; params.yaml may have been edited since."""
        content: dict[str, Any] = yaml.safe_load(git("show", f"{self.commit}:./{paths.PARAMS.as_posix()}"))
        for name, stage in yaml.safe_load(self.lock_text)["stages"].items():
            if name != "track":  # it has all parameters, and may not have run since
                content |= stage.get("params", {}).get(paths.PARAMS.as_posix(), {})
        return content

    def read(self, path: Path) -> Any:
        """A JSON file among the outputs.

        Raises:
            ArtifactError: DVC's cache does not have it.
        """
        found = self.md5.get(path)
        for folder in () if found else path.parents:
            if (listing := self.md5.get(folder)) is not None:
                entries = {entry["relpath"]: entry["md5"] for entry in self._load(listing, folder)}
                found = entries.get(path.relative_to(folder).as_posix())
        if found is None:
            raise ArtifactError(path, f"experiment {self.commit[:7]} has no such result")
        return self._load(found, path)

    def of_seed(self, seed: int, replicas: int, path: Path) -> Path:
        """Where the records of one of several seeds are; `path` for a single one."""
        return paths.MODEL / "replicas" / str(seed) / path.name if replicas > 1 else path

    def _load(self, md5: str, path: Path) -> Any:
        file = cache_folder(paths.main_root()) / "files/md5" / md5[:2] / md5[2:]
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise ArtifactError(
                path,
                f"of experiment {self.commit[:7]} is not in DVC's cache; `dvc fetch` brings it from a remote",
            ) from None


def _row(source: Source, seed: int) -> dict[str, Any]:
    return {"variant": source.variant, "seed": seed, **source.levels, **dict.fromkeys(NUMBERS)}


def _value(replica: Mapping[str, Any], metric: str) -> float | None:
    """The metric at the end of a run; None where it diverged.

    Raises:
        StudyError: there is no such metric.
    """
    section, _, name = metric.partition(".")
    measured = replica.get(section)
    if not isinstance(measured, dict) or name not in measured:
        known = [f"{key}.{one}" for key, group in replica.items() if isinstance(group, dict) for one in group]
        raise StudyError("metric", f"{metric}: no such measure in reports/replicas.json{nearest(metric, known)}")
    return None if "diverged_at" in replica else measured[name]


def _start(replica: Mapping[str, Any], metric: str, curve: Sequence[tuple[int, float]]) -> float | None:
    """What the metric was before the first update, for losses; None for other measures."""
    first = next((loss for step, loss in curve if step == 0), None)
    if first is None or metric.partition(".")[2] not in ("loss", "excess"):
        return None
    if metric.endswith(".loss"):
        return first
    section = replica[metric.partition(".")[0]]
    below = section.get("entropy", section.get("floor"))
    return None if below is None else first - below


def _clocks(lock_text: str) -> dict[int, dict[int | None, float]]:
    """Of each seed the seconds of training until a measurement, by its step; {} where the journals are gone."""
    known = fingerprint(lock_text)
    found: dict[int, dict[int | None, float]] = {}
    for execution in outbox.with_fingerprint(known) if known else ():
        for one in execution.replicas() or [execution]:
            found[one.record.seed] = _clock(one)
    return found


def _clock(execution: Execution) -> dict[int | None, float]:
    """Without the time that passed while a run was interrupted: the step before a resumption counts no more."""
    seconds: dict[int | None, float] = {}
    passed, last, interrupted = 0.0, None, False
    for entry in execution.entries():
        interrupted |= "event" in entry
        if "m" not in entry:
            continue
        if last is not None and not interrupted:
            passed += (entry["t"] - last) / 1000
        last, interrupted = entry["t"], False
        if any(key.startswith("eval/") for key in entry["m"]):
            seconds.setdefault(entry["s"], passed)
    return seconds

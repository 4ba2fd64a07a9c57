"""The content of one run, brought into its copy: only what is missing, or has changed on one side alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stages.tracking.copying_files import repository, send_files
from stages.tracking.copying_models import copy_models
from stages.tracking.copying_names import OWN, TAG_CLAIM, TAG_COPIED, Names, digest, is_ours
from stages.tracking.names import NOTE, STUDY, TAG_NOTE, TAG_ROLE
from stages.tracking.store import Progress, Store, silent

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run

_BATCH = 1000  # metrics that MLflow takes at once
_PARAMS, _TAGS = 100, 100
_EXPERIMENT = "dvc.experiment"  # names, of which both sides may have some
_NAME = "mlflow.runName"


def is_unfinished(run: Run) -> bool:
    """A copy that nobody has brought to its end yet."""
    return TAG_CLAIM in run.data.tags and run.info.status == "RUNNING"


def is_known(run: Run, there: Run, names: Names) -> bool:
    """The run has not changed since one of the two was copied to the other."""
    return _marks(there, run)[0] == names.digest(run) or _marks(run, there)[1] == digest(run)


def _is_unchanged(there: Run, run: Run, names: Names) -> bool:
    """The copy has not changed since one of the two was copied to the other."""
    return is_known(there, run, names.inverse())


def _marks(copy: Run, of: Run) -> tuple[str, str]:
    """Digests of the run that it was copied from and of itself, when that was done; empty if it was another run."""
    before, own, other = (copy.data.tags.get(TAG_COPIED, "").split() + [""] * 3)[:3]
    return (before, own) if other == of.info.run_id else ("", "")


@dataclass
class Copying:
    """One run and its copy.

    Attributes:
        run: as its store has it.
        there: the copy.
        names: ids of both stores.
        sent: what was sent, in pieces.
        differing: what differs and was left as it is there.
    """

    source: Store
    target: Store
    run: Run
    there: Run
    names: Names
    progress: Progress = silent
    sent: int = 0
    differing: list[str] = field(default_factory=list)

    def do(self) -> None:
        """Bring over what is missing. May be killed and repeated at any point, and done by several at once."""
        run_id = self.there.info.run_id
        self.run = self.source.client.get_run(self.run.info.run_id)
        self.there = self.target.client.get_run(run_id)
        follows = is_unfinished(self.there) or _is_unchanged(self.there, self.run, self.names)
        self._params()
        self._metrics()
        self._inputs()
        self._files(follows)
        sent, differing = copy_models(self.source, self.target, self.run, self.there, self.names)
        self.sent += sent
        self.differing += differing
        self.progress("models")
        self._tags(follows)
        self._end(follows)
        if not self.differing:  # else the next copying names it again
            self._mark()
        self.progress("run")

    def _params(self) -> None:
        from mlflow.entities import Param

        here, there = self.run.data.params, self.there.data.params
        self.differing += [
            f"parameter {key}: {value!r} here, {there[key]!r} there"
            for key, value in here.items()
            if there.get(key, value) != value
        ]
        missing = [Param(key, value) for key, value in here.items() if key not in there]
        for batch in _batched(missing, _PARAMS):
            self.target.client.log_batch(self.there.info.run_id, params=batch)
            self.sent += len(batch)
            self.progress("params")

    def _metrics(self) -> None:
        """Every point with its own time: MLflow takes the same one twice as one."""
        missing: list[Metric] = []
        for key in self.run.data.metrics:
            known = set()
            if key in self.there.data.metrics:
                known = {_point(one) for one in self.target.client.get_metric_history(self.there.info.run_id, key)}
            points = self.source.client.get_metric_history(self.run.info.run_id, key)
            missing += [one for one in points if _point(one) not in known]
        for batch in _batched(missing, _BATCH):
            self.target.client.log_batch(self.there.info.run_id, metrics=[_bare(one) for one in batch])
            self.sent += len(batch)
            self.progress("metrics")

    def _inputs(self) -> None:
        known = {_dataset(one) for one in (self.there.inputs.dataset_inputs if self.there.inputs else [])}
        missing = [
            one for one in (self.run.inputs.dataset_inputs if self.run.inputs else []) if _dataset(one) not in known
        ]
        if missing:
            self.target.client.log_inputs(self.there.info.run_id, datasets=missing)
            self.sent += len(missing)
            self.progress("inputs")

    def _files(self, follows: bool) -> None:
        """The report of a study is one thing that grows: it follows the one here as a whole."""
        is_study = self.run.data.tags.get(TAG_ROLE) == STUDY
        sent = send_files(
            repository(self.run.info.artifact_uri, self.source.uri),
            repository(self.there.info.artifact_uri, self.target.uri),
            replace=is_study and follows,
        )
        self.sent += len(sent.files)
        self.differing += [f"file {name}" for name in sent.differing]
        self.progress("files")

    def _tags(self, follows: bool) -> None:
        from mlflow.entities import RunTag

        wanted, there = self.names.tags(self.run.data.tags), self.there.data.tags
        if _EXPERIMENT in there and _EXPERIMENT in wanted:
            both = [*there[_EXPERIMENT].split(", "), *wanted[_EXPERIMENT].split(", ")]
            wanted[_EXPERIMENT] = ", ".join(dict.fromkeys(both))
            there = {**there, _EXPERIMENT: wanted[_EXPERIMENT]} if wanted[_EXPERIMENT] == there[_EXPERIMENT] else there
        changed = {key: value for key, value in wanted.items() if there.get(key) != value}
        if not follows:
            self._keep(changed, there)
        for batch in _batched(list(changed.items()), _TAGS):
            self.target.client.log_batch(self.there.info.run_id, tags=[RunTag(key, value) for key, value in batch])
            self.sent += len(batch)
            self.progress("tags")

    def _keep(self, changed: dict[str, str], there: dict[str, str]) -> None:
        """Both sides have changed: tags that are there stay; of notes one that a person wrote is the better one."""
        kept = {key for key in changed if key in there and key != _EXPERIMENT}
        if NOTE in kept:
            if is_ours(there):
                kept -= {NOTE, TAG_NOTE}
            else:
                kept.add(TAG_NOTE)
                if is_ours(self.run.data.tags):
                    kept.discard(NOTE)
                    changed.pop(NOTE)
        for key in sorted(kept):
            if key in changed and key != TAG_NOTE:
                self.differing.append(f"tag {key}: {_short(changed[key])} here, {_short(there[key])} there")
            changed.pop(key, None)

    def _end(self, follows: bool) -> None:
        """The status, last of all: what is RUNNING is not whole."""
        here, there = self.run.info, self.there.info
        if (here.status, here.end_time) == (there.status, there.end_time):
            return
        if not follows:
            self.differing.append(f"status: {here.status} here, {there.status} there")
            return
        self.target.client.set_terminated(there.run_id, here.status, here.end_time)
        self.sent += 1

    def _mark(self) -> None:
        """Note what both sides were, so that the next copying has nothing to look at."""
        now = self.target.client.get_run(self.there.info.run_id)
        mark = f"{self.names.digest(self.run)} {digest(now)} {self.run.info.run_id}"
        if now.data.tags.get(TAG_COPIED) != mark:
            self.target.client.set_tag(now.info.run_id, TAG_COPIED, mark)


def first_tags(run: Run, names: Names) -> dict[str, str]:
    """Tags with which a copy begins: those that say what it is."""
    return {key: value for key, value in names.tags(run.data.tags).items() if key not in (NOTE, TAG_NOTE, *OWN)}


def _point(metric: Metric) -> tuple[Any, ...]:
    value = None if math.isnan(metric.value) else metric.value
    return metric.key, metric.step, metric.timestamp, value


def _bare(metric: Metric) -> Metric:
    """A point without what ties it to a model of the other store."""
    from mlflow.entities import Metric

    return Metric(metric.key, metric.value, metric.timestamp, metric.step)


def _dataset(one: Any) -> tuple[str, str]:
    return str(one.dataset.name), str(one.dataset.digest)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")


def _batched(items: list[Any], size: int) -> list[list[Any]]:
    return [items[i : i + size] for i in range(0, len(items), size)]

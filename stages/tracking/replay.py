"""An execution's journal, replayed into one MLflow run; as often as one likes.

A run is found by the tag `noam.execution`, or created under a lock. MLflow takes a metric with the same key, step,
time and value twice as one, so a replay that was killed half way is simply repeated; the tag `noam.journal` holds the
bytes that are surely in, which spares the time of doing so from the start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from stages.execution import Execution, ExecutionRecord
from stages.tracking import outbox
from stages.tracking.journal import read_from
from stages.tracking.names import name_for_mlflow, param_values, run_name, run_tags, shortened
from stages.tracking.store import TAG_EXECUTION, TAG_FINGERPRINT, Progress, Store, silent, waiting_lock

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run

T = TypeVar("T")

_BATCH = 1000
_TAG_LENGTH = 5000
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
_TAG_OFFSET, _TAG_MESSAGE, _TAG_DIVERGED = "noam.journal", "noam.message", "noam.not_finite_at_step"


@dataclass
class Replay:
    """The replay of one execution into its run, which may go on while the journal grows."""

    store: Store
    execution: Execution
    run: Run
    offset: int
    progress: Progress = silent

    @classmethod
    def open(cls, store: Store, execution: Execution, progress: Progress = silent) -> Replay:
        """Find or create the run. Its parameters and tags are in it afterwards."""
        run = find_or_create_run(store, execution)
        replay = cls(store, execution, run, int(run.data.tags.get(_TAG_OFFSET, 0)), progress)
        if not replay.deleted:
            replay._log_params()
        return replay

    @property
    def deleted(self) -> bool:
        """Somebody deleted the run in MLflow: it is left alone."""
        return bool(self.run.info.lifecycle_stage == "deleted")

    @property
    def run_id(self) -> str:
        return str(self.run.info.run_id)

    def tag(self, key: str, value: str) -> None:
        if self.run.data.tags.get(key) != value:
            self.store.client.set_tag(self.run_id, key, shortened(value, _TAG_LENGTH))
            self.run.data.tags[key] = value

    def metrics(self) -> bool:
        """Bring in what the journal has gained; True if there was anything."""
        started = self.offset
        while True:
            entries, end = read_from(self.execution.journal_path, self.offset)
            if end == self.offset:
                return self.offset > started
            for batch in _batches(self._metrics_of(entries), _BATCH):
                self.store.client.log_batch(self.run_id, metrics=batch)
                self.progress("metrics")
            self.offset = end
            self.tag(_TAG_OFFSET, str(end))

    def status(self) -> str:
        """Set the run's status from the last end in the journal; RUNNING while there is none."""
        end = self.execution.end()
        if end is None:
            if self.run.info.status != "RUNNING":
                self.store.client.update_run(self.run_id, status="RUNNING")
            return "RUNNING"
        status, message = _STATUS[end["event"]], end.get("message", "")
        if message:
            self.tag(_TAG_MESSAGE, message)
            self.tag("mlflow.note.content", f"{status}: {message}")
        elif _TAG_MESSAGE in self.run.data.tags:
            for key in (_TAG_MESSAGE, "mlflow.note.content"):
                self.store.client.delete_tag(self.run_id, key)
        if (self.run.info.status, self.run.info.end_time) != (status, end["t"]):
            self.store.client.set_terminated(self.run_id, status, end["t"])
        return status

    def _log_params(self) -> None:
        from mlflow.entities import Param

        known = self.run.data.params
        missing = {key: value for key, value in param_values(self.execution.record.params).items() if key not in known}
        for batch in _batches(missing.items(), 100):
            self.store.client.log_batch(self.run_id, params=[Param(key, value) for key, value in batch])

    def _metrics_of(self, entries: Iterable[dict[str, Any]]) -> Iterator[Metric]:
        from mlflow.entities import Metric

        for entry in entries:
            for key, value in entry.get("m", {}).items():
                if isinstance(value, int | float) and math.isfinite(value):
                    yield Metric(name_for_mlflow(key), float(value), entry["t"], entry["s"])
                elif _TAG_DIVERGED not in self.run.data.tags:
                    self.tag(_TAG_DIVERGED, str(entry["s"]))


def last_end(execution: Execution) -> str:
    """How an execution ended: 'finished', 'failed', 'killed', or '' while it has not."""
    end = execution.end()
    return str(end["event"]) if end else ""


def find_or_create_run(store: Store, execution: Execution) -> Run:
    """The run of an execution. Several processes that ask at once get the same one."""
    with waiting_lock("runs"):
        found = store.tagged(TAG_EXECUTION, execution.id)
        if found:
            return found[0]
        record = execution.record
        fingerprint = outbox.fingerprint_of(execution)
        tags = run_tags(record, fingerprint)
        name = run_name(record)
        if fingerprint:
            number = repetition(store, record, fingerprint)
            if number > 1:
                tags["noam.repeat"], name = str(number), f"{name} · repeat {number}"
        return store.client.create_run(store.experiment_id, start_time=record.started, tags=tags, run_name=name)


def repetition(store: Store, record: ExecutionRecord, fingerprint: str) -> int:
    """1 for the first execution that gave these results, 2 for the next (`dvc repro -f`), …"""
    others = store.tagged(TAG_FINGERPRINT, fingerprint)
    earlier = [run for run in others if run.info.start_time < record.started]
    return 1 + len([run for run in earlier if run.data.tags.get(TAG_EXECUTION) != record.id])


def mark_fingerprint(replay: Replay, fingerprint: str) -> None:
    """Tell a run which results are its own, and number it if an earlier run has the same ones."""
    if replay.run.data.tags.get(TAG_FINGERPRINT) == fingerprint:
        return
    record = replay.execution.record
    number = repetition(replay.store, record, fingerprint)
    if number > 1:
        replay.tag("noam.repeat", str(number))
        replay.store.client.update_run(replay.run_id, name=f"{run_name(record)} · repeat {number}")
    replay.tag(TAG_FINGERPRINT, fingerprint)


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch

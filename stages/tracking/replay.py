"""An execution's journal, replayed into one MLflow run; as often as one likes.

A run is found by the tag `noam.execution`, or created under a lock. MLflow takes a metric with the same key, step,
time and value twice as one, so a replay that was killed half way is simply repeated; the tag `noam.journal` holds the
bytes that are surely in, which spares the time of doing so from the start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from stages.execution import Execution, ExecutionRecord
from stages.tracking import outbox
from stages.tracking.groups import is_group
from stages.tracking.journal import read_from
from stages.tracking.names import (
    NOTE,
    REPLICA,
    SUMMARY,
    TAG_DIVERGED_AT,
    TAG_GROUP,
    TAG_PARENT,
    TAG_REPEAT,
    TAG_REPLICAS,
    TAG_ROLE,
    name_for_mlflow,
    note_tags,
    param_values,
    run_name,
    run_tags,
    shortened,
)
from stages.tracking.store import TAG_EXECUTION, TAG_FINGERPRINT, Progress, Store, silent, waiting_lock

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run

T = TypeVar("T")

TAG_MESSAGE, TAG_DIVERGENCE = "noam.message", "noam.divergence"
TAG_RESUMED = "noam.resumed"  # how often, as far as the run has been told
_BATCH = 1000
_TAG_LENGTH = 5000
STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
_TAG_OFFSET = "noam.journal"
_TAGS_OF_ROLE = (TAG_ROLE, TAG_GROUP, TAG_REPLICAS, TAG_PARENT)


@dataclass
class Replay:
    """The replay of one execution into its run, which may go on while the journal grows.

    Attributes:
        offset: bytes of the journal that are in.
        name: of the run.
        news: the journal had events that `status` has not seen.
        former_group: of a replica that went over from another group, the id of that one.
    """

    store: Store
    execution: Execution
    run: Run
    offset: int
    progress: Progress = silent
    name: str = ""
    news: bool = True
    former_group: str = ""

    @classmethod
    def open(
        cls, store: Store, execution: Execution, progress: Progress = silent, group: Replay | None = None
    ) -> Replay:
        """Find or create the run. Its parameters and tags are in it afterwards.

        Args:
            store: where the run is.
            execution: whose journal.
            progress: is told of every step.
            group: of a replica, the replay of the execution that it belongs to.
        """
        role = role_of(execution, group.run if group is not None else _run_of_group(store, execution))
        run = find_or_create_run(store, execution, role)
        replay = cls(store, execution, run, int(run.data.tags.get(_TAG_OFFSET, 0)), progress, str(run.info.run_name))
        if not replay.deleted:
            replay._log_params()
            replay.take_up(role)
        return replay

    @property
    def deleted(self) -> bool:
        """Somebody deleted the run in MLflow: it is left alone."""
        return bool(self.run.info.lifecycle_stage == "deleted")

    @property
    def run_id(self) -> str:
        return str(self.run.info.run_id)

    @property
    def tags(self) -> dict[str, str]:
        """As they were when the run was read, and as they were set here since."""
        tags: dict[str, str] = self.run.data.tags
        return tags

    def tag(self, key: str, value: str) -> bool:
        """Set a tag; True if it was not so before."""
        value = shortened(value, _TAG_LENGTH)
        if self.tags.get(key) == value:
            return False
        self.store.client.set_tag(self.run_id, key, value)
        self.tags[key] = value
        return True

    def untag(self, key: str) -> bool:
        """Remove a tag; True if it was there."""
        if key not in self.tags:
            return False
        self.store.client.delete_tag(self.run_id, key)
        del self.tags[key]
        return True

    def take_up(self, role: dict[str, str]) -> None:
        """Tell the run what has become of its execution: resumed under another name, alone or in another group."""
        before = self.tags.get(TAG_GROUP, "")
        if before != role.get(TAG_GROUP, before):
            self.former_group = before
        changed = [self.tag(key, role[key]) if key in role else self.untag(key) for key in _TAGS_OF_ROLE]
        resumed = str(resumptions(self.execution))
        if resumed != self.tags.get(TAG_RESUMED, "0"):
            changed += [self.tag(key, value) for key, value in run_tags(self.execution.record, None).items()]
            self.tag(TAG_RESUMED, resumed)
        if any(changed):
            self.rename()

    def rename(self) -> None:
        """Give the run the name that its record and tags make."""
        name = run_name(self.execution.record, self.tags)
        if name != self.name:
            self.store.client.update_run(self.run_id, name=name)
            self.name = name

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
        if not self.news:
            return str(self.run.info.status)
        end = self.execution.end()
        status, message = (STATUS[end["event"]], end.get("message", "")) if end else ("RUNNING", "")
        if message:
            self.tag(TAG_MESSAGE, message)
        else:
            self.untag(TAG_MESSAGE)
        if end is None:
            if self.run.info.status != "RUNNING":
                self.store.client.update_run(self.run_id, status="RUNNING")
        elif (self.run.info.status, self.run.info.end_time) != (status, end["t"]):
            self.store.client.set_terminated(self.run_id, status, end["t"])
        self.run = self.store.client.get_run(self.run_id)
        self.news = False
        return status

    def note(self, text: str) -> None:
        """Describe the run on its page, unless the user has written something there."""
        text = shortened(text, _TAG_LENGTH)
        if text == self.tags.get(NOTE, ""):
            return
        self.run = self.store.client.get_run(self.run_id)
        for key, value in note_tags(self.tags, text).items():
            if text:
                self.tag(key, value)
            else:
                self.untag(key)

    def _log_params(self) -> None:
        from mlflow.entities import Param

        known = self.run.data.params
        missing = {key: value for key, value in param_values(self.execution.record.params).items() if key not in known}
        for batch in _batches(missing.items(), 100):
            self.store.client.log_batch(self.run_id, params=[Param(key, value) for key, value in batch])

    def _metrics_of(self, entries: Iterable[dict[str, Any]]) -> Iterator[Metric]:
        from mlflow.entities import Metric

        for entry in entries:
            if "event" in entry:
                self.news = True
                if entry["event"] == "diverged":
                    message = str(entry.get("message", ""))
                    step = re.search(r"\d+", message)
                    self._diverged(step[0] if step else "", message)
            for key, value in entry.get("m", {}).items():
                if isinstance(value, int | float) and math.isfinite(value):
                    yield Metric(name_for_mlflow(key), float(value), entry["t"], entry["s"])
                elif TAG_DIVERGED_AT not in self.tags:
                    self._diverged(str(entry["s"]), f"diverged at update {entry['s']}: {key} is not finite")

    def _diverged(self, step: str, message: str) -> None:
        """Mark the run, which goes on: it has a result nonetheless."""
        self.tag(TAG_DIVERGENCE, message)
        self.tag(TAG_DIVERGED_AT, step)
        self.rename()


def last_end(execution: Execution) -> str:
    """How an execution ended: 'finished', 'failed', 'killed', or '' while it has not."""
    end = execution.end()
    return str(end["event"]) if end else ""


def resumptions(execution: Execution) -> int:
    """How often an execution went on after a bad end."""
    return sum(entry.get("event") == "resumed" for entry in execution.entries())


def is_renewed(execution: Execution, run: Run) -> bool:
    """An execution was resumed after its run had been deleted in MLflow: it needs another one."""
    deleted = run.info.lifecycle_stage == "deleted"
    return deleted and resumptions(execution) > int(run.data.tags.get(TAG_RESUMED, "0"))


def newest_run(runs: Iterable[Run]) -> Run:
    """Of the runs of one execution the one that counts: one that is there, else the last that was deleted."""
    return max(runs, key=lambda run: (run.info.lifecycle_stage != "deleted", int(run.data.tags.get(TAG_RESUMED, "0"))))


def find_or_create_run(store: Store, execution: Execution, role: dict[str, str]) -> Run:
    """The run of an execution. Several processes that ask at once get the same one."""
    with waiting_lock("runs"):
        found = store.tagged(TAG_EXECUTION, execution.id)
        if found and not is_renewed(execution, newest_run(found)):
            return newest_run(found)
        record = execution.record
        fingerprint = outbox.fingerprint_of(execution)
        tags = run_tags(record, fingerprint) | role
        if resumed := resumptions(execution):
            tags[TAG_RESUMED] = str(resumed)
        if fingerprint and (number := repetition(store, record, fingerprint)) > 1:
            tags[TAG_REPEAT] = str(number)
        name = run_name(record, tags)
        return store.client.create_run(store.experiment_id, start_time=record.started, tags=tags, run_name=name)


def repetition(store: Store, record: ExecutionRecord, fingerprint: str) -> int:
    """1 for the first execution that gave these results, 2 for the next (`dvc repro -f`), …"""
    others = store.tagged(TAG_FINGERPRINT, fingerprint)
    earlier = [run for run in others if run.info.start_time < record.started]
    return 1 + len([run for run in earlier if run.data.tags.get(TAG_EXECUTION) != record.id])


def mark_fingerprint(replay: Replay, fingerprint: str) -> None:
    """Tell a run which results are its own, and number it if an earlier run has the same ones."""
    if replay.tags.get(TAG_FINGERPRINT) == fingerprint:
        return
    number = repetition(replay.store, replay.execution.record, fingerprint)
    if number > 1:
        replay.tag(TAG_REPEAT, str(number))
        replay.rename()
    replay.tag(TAG_FINGERPRINT, fingerprint)


def role_of(execution: Execution, group: Run | None = None) -> dict[str, str]:
    """Tags that say whether a run is one of several replicas, or their summary.

    Args:
        execution: whose run.
        group: of a replica, the run of the execution that it belongs to, if there is one.
    """
    if is_group(execution):
        replicas = execution.record.params.get("replicas", len(execution.replicas()))
        return {TAG_ROLE: SUMMARY, TAG_GROUP: execution.id, TAG_REPLICAS: str(replicas)}
    if group is not None:
        shared = {key: group.data.tags[key] for key in (TAG_GROUP, TAG_REPLICAS) if key in group.data.tags}
        return {TAG_ROLE: REPLICA, **shared, TAG_PARENT: str(group.info.run_id)}
    parent = execution.record.parent
    return {TAG_ROLE: REPLICA, TAG_GROUP: parent} if parent else {}


def _run_of_group(store: Store, execution: Execution) -> Run | None:
    """Where a replica is not opened by its group, since another one took its place: the group's run."""
    parent = execution.record.parent
    found = store.tagged(TAG_EXECUTION, parent) if parent else []
    return newest_run(found) if found else None


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch

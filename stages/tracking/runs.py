"""The runs of one execution in MLflow: its own, and of several replicas one a replica, which its own sums up.

A replica's run has its curves, its final losses and its status; it is nested below the summary, which has the spread of
the losses, the figures, the report and the model. The tag `noam.group` holds them together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stages import paths
from stages.execution import Execution
from stages.tracking.groups import members
from stages.tracking.names import TAG_DIVERGED, TAG_DIVERGED_AT, TAG_GROUP, shortened
from stages.tracking.replay import TAG_DIVERGENCE, TAG_MESSAGE, Replay, role_of
from stages.tracking.store import Progress, Store, silent

_GONE = "ended without a word while the other replicas went on"
_REMARK_LENGTH = 1000
_ROWS = 50  # of the table of replicas: a note is cut when it gets long


@dataclass
class Runs:
    """The replays of one execution and of its replicas.

    Attributes:
        own: of the execution itself.
        known: of the replicas that have begun, by the id of their execution.
    """

    own: Replay
    known: dict[str, Replay] = field(default_factory=dict)

    @classmethod
    def open(cls, store: Store, execution: Execution, progress: Progress = silent) -> Runs:
        """Find or create the runs of an execution and of the replicas that it has so far."""
        runs = cls(Replay.open(store, execution, progress))
        runs.look()
        return runs

    @property
    def replicas(self) -> list[Replay]:
        """Those whose runs nobody has deleted, in the order of their seeds."""
        found = [one for one in self.known.values() if not one.deleted]
        return sorted(found, key=lambda one: one.execution.record.seed)

    def look(self) -> None:
        """Open the runs of replicas that have begun since the last look."""
        own = self.own
        if own.deleted:
            return
        new = [one for one in members(own.execution) if one.id not in self.known]
        if new:
            own.take_up(role_of(own.execution))
        for one in new:
            self.known[one.id] = Replay.open(own.store, one, own.progress, own)
            self._leave(one)
            own.progress("replica")

    def metrics(self) -> None:
        """Bring in what the journals have gained."""
        for replay in (self.own, *self.replicas):
            replay.metrics()

    def status(self) -> bool:
        """Set status and note of each run. True if no more is to come of any."""
        self._close_replicas()
        statuses = [self._status(one) for one in (*self.replicas, self.own)]
        if diverged := sum(TAG_DIVERGED_AT in one.tags for one in self.replicas):
            self.own.tag(TAG_DIVERGED, str(diverged))
            self.own.rename()
        for one in self.replicas:
            one.note("\n\n".join([f"Replica of {_link(self.own)}.", *_remarks(one)]))
            one.progress("note")
        self.own.note("\n\n".join([*_remarks(self.own), *self._table()]))
        return "RUNNING" not in statuses

    def _status(self, replay: Replay) -> str:
        status = replay.status()
        replay.progress("status")
        return status

    def _close_replicas(self) -> None:
        """A replica whose process and whose group are gone has ended, even if it could not say so itself."""
        if not self.replicas or not self.own.execution.ended():
            return
        for one in self.replicas:
            if not one.execution.ended() and not one.execution.trains():
                one.execution.append_event("killed", _GONE)
                one.metrics()

    def _leave(self, replica: Execution) -> None:
        """Strike a replica off the note of the group that it was in before."""
        before = self.known[replica.id].former_group
        group = Execution.find(before)
        if group is not None and before != self.own.execution.id:
            runs = Runs.open(self.own.store, group)
            if not runs.own.deleted:
                runs.status()

    def _table(self) -> Iterator[str]:
        replicas = self.replicas
        if not replicas:
            return
        measured = [f"final/{split}_loss" for split in paths.SPLITS]
        columns = [key for key in measured if any(key in one.run.data.metrics for one in replicas)]
        lines = [
            "| seed |" + "".join(f" {key.removeprefix('final/').replace('_', ' ')} |" for key in columns) + " status |",
            "|---|" + "---|" * len(columns) + "---|",
        ]
        for one in replicas[:_ROWS]:
            metrics = one.run.data.metrics
            values = "".join(f" {metrics[key]:.4f} |" if key in metrics else " – |" for key in columns)
            step = one.tags.get(TAG_DIVERGED_AT)
            how = f"diverged at update {step}" if step else one.run.info.status.lower()
            seed = f"[{one.execution.record.seed}]({_address(one)})"
            lines.append(f"| {seed} |{values} {how} |")
        yield "\n".join(lines)
        if len(replicas) > _ROWS:
            yield f"… and {len(replicas) - _ROWS} more: tags.`{TAG_GROUP}` = '{self.own.execution.id}'"


def _remarks(replay: Replay) -> Iterator[str]:
    """How a run ended, if that wants an explanation."""
    if TAG_MESSAGE in replay.tags:
        yield f"{replay.run.info.status}: {shortened(replay.tags[TAG_MESSAGE], _REMARK_LENGTH)}"
    if TAG_DIVERGENCE in replay.tags:
        yield replay.tags[TAG_DIVERGENCE]


def _link(replay: Replay) -> str:
    name = "".join(f"\\{c}" if c in "[]|\\" else c for c in replay.name)
    return f"[{name}]({_address(replay)})"


def _address(replay: Replay) -> str:
    """Of a run on the pages that are open."""
    return f"#/experiments/{replay.store.experiment_id}/runs/{replay.run_id}"

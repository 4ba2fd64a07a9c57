"""One run from its beginning, or from its last checkpoint, to its end: session, journal and checkpoint together."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from stages.errors import CheckpointError, ParamError
from stages.execution import Execution, Journal
from stages.params import TrainParams
from stages.training.batches import Sentences
from stages.training.checkpoint import Checkpoint, read
from stages.training.devices import check_precision, device_of, name_of
from stages.training.kept import key_of, snapshots
from stages.training.records import Divergence, Record, Update, Validation
from stages.training.series import JournalSeries
from stages.training.session import Session, weights_of

if TYPE_CHECKING:
    from stages.training.process_group import ProcessGroup


@dataclass(frozen=True)
class Task:
    """A run to be made.

    Attributes:
        settings: of the run, with the seed of its own.
        inputs: what its result depends on, by name: the same inputs go on with the same checkpoint.
        vocab_size: entries of the vocabulary.
        params: all parameters, for the journal.
        environment: what it computes with, for the journal.
        parent: id of the execution that it is a replica of, or ''.
        device: the kind of device that it is computed on.
    """

    settings: TrainParams
    inputs: dict[str, Any]
    vocab_size: int
    params: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    parent: str = ""
    device: str = "cpu"


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes:
        weights: by the names of the model's parameters.
        updates, validations: all records, in order.
        divergence: how it ended before its time, if it did.
        snapshots: files with the weights on the way, by the number of updates done.
    """

    weights: dict[str, Tensor]
    updates: list[Update]
    validations: list[Validation]
    divergence: Divergence | None
    snapshots: dict[int, Path] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, inputs: Mapping[str, Any]) -> Outcome:
        """From the last checkpoint of a run that is over."""
        saved = read(folder, key_of(inputs))
        validations, divergence = records_of(saved.place)
        return cls(weights_of(saved.tensors), saved.updates, validations, divergence, snapshots(folder))


class Listener:
    """Is told how a run goes; this one takes no notice."""

    def started(self, execution: Execution, step: int) -> None:
        """The run begins, or goes on after `step` updates."""

    def record(self, record: Record) -> None:
        """An update, a measurement, or the end by divergence."""


class Stop:
    """Turns the first signal into a question that the run answers between two updates; a second one interrupts.

    Args:
        also: another reason to stop.
        patient: a second signal changes nothing, as in a process that is told by its parent and by the terminal.
    """

    def __init__(self, also: Callable[[], bool] = lambda: False, *, patient: bool = False) -> None:
        self.number = 0
        self._also, self._patient = also, patient

    @property
    def asked(self) -> bool:
        if not self.number and self._also():
            self.number = signal.SIGTERM
        return self.number != 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self.number and not self._patient:
            raise KeyboardInterrupt(number)
        self.number = self.number or number


def run_task(
    task: Task,
    splits: Mapping[str, Sentences],
    stop: Stop,
    listener: Listener,
    group: ProcessGroup | None = None,
) -> Checkpoint:
    """Bring a run to its end. The checkpoint returned holds its outcome, and is this process's until released.

    With a group this is its rank 0, which the others follow.

    Raises:
        KeyboardInterrupt: `stop` was asked for; a checkpoint has been saved.
        CheckpointError: one that cannot be read or written.
        ParamError: settings that the text is too short for, or that this machine or this caller has no means for.
    """
    if group is None and task.settings.processes > 1:
        raise ParamError("processes", f" = {task.settings.processes}: expected 1 here: each run has one process")
    check_precision(task.settings.precision, task.device)
    checkpoint = Checkpoint(task.inputs)
    try:
        _run(task, splits, stop, listener, checkpoint, group)
    except BaseException:
        checkpoint.release()
        raise
    return checkpoint


def _run(
    task: Task,
    splits: Mapping[str, Sentences],
    stop: Stop,
    listener: Listener,
    checkpoint: Checkpoint,
    group: ProcessGroup | None,
) -> None:
    device = device_of(task.device, group.local_rank if group else 0)
    session = Session(task.settings, task.vocab_size, splits, group, device)
    saved = checkpoint.load() if task.settings.resume else None
    if group is not None:
        group.share_state((saved.tensors, saved.place) if saved is not None else None)
    updates: list[Update] = []
    validations: list[Validation] = []
    if saved is not None:
        updates = saved.updates
        try:
            session.restore(saved.tensors, saved.place["session"])
            validations, session.divergence = records_of(saved.place)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(checkpoint.folder, f"not of this model ({type(error).__name__}: {error})") from None
    else:
        checkpoint.begin()
    execution = Execution.find(checkpoint.execution())
    if execution is None or not execution.has(task.params):  # other processes or figures: a run of its own in MLflow
        environment = task.environment | ({"device": name_of(task.device)} if task.device != "cpu" else {})
        execution = Execution.create("trained", task.params, parent=task.parent, environment=environment)
        checkpoint.claim(execution.id)
    elif not session.done or not task.parent:  # a replica that is over has had its end
        execution.resume(task.parent)
    listener.started(execution, session.step)

    with Journal(execution) as journal:
        series = JournalSeries(journal, session.updates)
        before: list[Update | Validation] = [*updates, *validations]
        for one in sorted(before, key=lambda record: record.step):  # stable: an update comes before its measurement
            series.add(one)

        def save() -> None:
            journal.sync()
            tensors, place = session.state()
            divergence = asdict(session.divergence) if session.divergence else None
            records = {"validations": [asdict(one) for one in validations], "divergence": divergence}
            checkpoint.save(tensors, {"session": place, **records}, updates)
            if group is not None:
                group.wait_for_writer()

        due = snapshot_steps(session.updates, task.settings.snapshots)
        for record in session.records():
            if isinstance(record, Update):
                updates.append(record)
            elif isinstance(record, Validation):
                validations.append(record)
            series.add(record)
            listener.record(record)
            if session.step in due and not isinstance(record, Divergence):
                due.remove(session.step)
                checkpoint.keep(session.step, session.weights())
            if stop.asked:
                save()
                raise KeyboardInterrupt(stop.number)
            if isinstance(record, Update) and _is_due(record.step, task.settings.checkpoint_every):
                save()
        if session.divergence and not any(event["event"] == "diverged" for event in execution.events()):
            execution.append_event("diverged", str(session.divergence))
        save()


def snapshot_steps(updates: int, count: int) -> set[int]:
    """After how many updates the weights are kept: `count` times, evenly, from before the first update on."""
    return {updates * i // count for i in range(count)}


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def records_of(place: Mapping[str, Any]) -> tuple[list[Validation], Divergence | None]:
    divergence = place["divergence"]
    return [Validation(**one) for one in place["validations"]], Divergence(**divergence) if divergence else None

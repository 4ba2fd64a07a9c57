"""Ids and parameters → a trained model, or one a seed, and the history of the training.

Run by `dvc repro`; by hand: `python -m stages.train`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from stages import files, numerics, paths
from stages.errors import LabError
from stages.execution import Execution, start_follower
from stages.model.storage import SNAPSHOTS, save_weights
from stages.optim import knobs
from stages.params import IN_LAST_DIGITS, WITHOUT_EFFECT, TrainParams
from stages.stage import Stage, run
from stages.text.vocabulary import Vocabulary
from stages.training.batches import Sentences
from stages.training.checkpoint import Checkpoint
from stages.training.devices import resolve
from stages.training.history import rows_of
from stages.training.kept import discard, exists, left_behind
from stages.training.launch import Watcher, is_writer, launched, local_processes, run_processes, take_part
from stages.training.records import Divergence, Record, Update, Validation, count_updates
from stages.training.replicas import GroupListener, run_tasks
from stages.training.runs import Listener, Outcome, Stop, Task, run_task
from stages.training.session import epochs_of, model_config


def main() -> None:
    stage = Stage("train", TrainParams)
    params = stage.params
    numerics.set_numerics(params.numerics)

    vocab_size, splits = load_text()
    epochs = epochs_of(splits["train"], params)
    updates = count_updates(epochs.per_epoch, params)
    advise(stage, updates, splits["train"])

    tasks = tasks_of(stage, vocab_size)
    if launched() and not is_writer():
        follow(tasks[0], splits)
        return
    mention_what_is_left(stage, tasks)
    tqdm.monitor_interval = 0  # its thread and forks do not go together
    with Stop() as stop, tqdm(total=updates * len(tasks), unit="update", disable=None) as bar:
        train = train_replicas if len(tasks) > 1 else train_one if params.processes == 1 else train_together
        execution, kept, outcomes = train(tasks, splits, stop, Progress(stage, bar))

    stage.check_inputs()
    save(tasks, outcomes)
    execution.append_event("trained")
    for folder in kept:
        discard(folder)


def load_text() -> tuple[int, dict[str, Sentences]]:
    """The number of entries of the vocabulary, and the splits."""
    vocabulary = Vocabulary.load(paths.VOCAB / "vocab.json")
    return len(vocabulary), {name: Sentences.load(paths.VOCAB / f"{name}.npy") for name in paths.SPLITS}


def save(tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
    """The outputs of this stage: models, histories, measurements."""
    vocab_md5 = files.md5_file(paths.VOCAB / "vocab.json")
    with files.replacing_folder(paths.MODEL) as folder:
        save_snapshots(outcomes[0], folder)
        for task, outcome in zip(tasks, outcomes, strict=True):
            own = replica_folder(folder, task)
            save_outcome(outcome, task, folder if task is tasks[0] else own, vocab_md5)
            if len(tasks) > 1:
                files.write_records(own / paths.HISTORY.name, rows_of([outcome.updates]))
                files.write_records(own / paths.VALIDATION.name, rows_of([outcome.validations]))
    files.write_records(paths.HISTORY, rows_of([outcome.updates for outcome in outcomes]))
    files.write_records(paths.VALIDATION, rows_of([outcome.validations for outcome in outcomes]))


def advise(stage: Stage[TrainParams], updates: int, sentences: Sentences) -> None:
    """Say what a user may not have meant."""
    params = stage.params
    if params.schedule != "none" and params.warmup >= updates:
        batch = params.batch_size * params.accumulate
        fewer = f"; an update has {batch} examples, so there are that much fewer of them: shrink warmup as well"
        stage.warn(
            f"warmup = {params.warmup} ≥ {updates} updates: the rate is still rising when training ends and never "
            f"reaches its peak{fewer if batch > 1 else ''}"
        )
    if params.batches != "packed" and (longest := int(sentences.lengths.max()) - 1) > params.max_length:
        longer = int((sentences.lengths - 1 > params.max_length).sum())
        stage.warn(
            f"{longer} sentence(s) of more than max_length = {params.max_length} tokens, the longest of {longest}: "
            "each is read in windows of so many, of which none sees the one before"
        )
    if params.optimizer == "prodigy":
        stage.say(f"note: prodigy finds a rate of its own, which lr = {params.lr:g} multiplies; 1 is usual")
    if dead := knobs.note(stage.everything):
        stage.say(f"note: {dead}")
    if params.replicas == 1 and params.threads > params.shards:
        stage.warn(f"threads = {params.threads}: only {params.shards} used, since a thread computes a shard (`shards`)")


def tasks_of(stage: Stage[TrainParams], vocab_size: int) -> list[Task]:
    """A run for each seed, with all that its weights depend on: one with other inputs starts anew."""
    device = resolve(stage.params.device, local_processes(stage.params.processes))
    environment = numerics.describe(stage.params.numerics, device)
    left_out = {*WITHOUT_EFFECT, *IN_LAST_DIGITS, "device"}
    settled = {f"params.yaml ({key})": value for key, value in stage.params.model_dump(exclude=left_out).items()}
    inputs = settled | stage.digests() | {"torch": environment["torch"], "device": device}
    tasks = []
    for seed in range(stage.params.seed, stage.params.seed + stage.params.replicas):
        alone = {"threads": 1} if stage.params.replicas > 1 else {}  # replicas have the cores among themselves
        settings = stage.params.model_copy(update={"seed": seed, "replicas": 1, **alone})
        everything = stage.everything.model_dump() | {"seed": seed}
        own = inputs | {"params.yaml (seed)": seed}
        tasks.append(Task(settings, own, vocab_size, everything, environment, device=device))
    return tasks


def mention_what_is_left(stage: Stage[TrainParams], tasks: Sequence[Task]) -> None:
    """Say why an interrupted run of this workspace is not gone on with."""
    left = left_behind(tasks[0].inputs)
    if left is not None and not any(exists(task.inputs) for task in tasks):
        step, changed = left
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        stage.say(
            f"starts anew: the run interrupted after update {step} differs in {', '.join(changed[:5])}{more} "
            "(`noam doctor` lists it)"
        )


class Progress(Watcher, GroupListener):
    """What the terminal shows of one run or of several: a bar, or about ten plain lines in all."""

    def __init__(self, stage: Stage[TrainParams], bar: tqdm[Any]) -> None:
        self._stage, self._bar = stage, bar
        self._done, self._shown = 0, -1
        self.execution: Execution | None = None  # of all replicas, or of the one run

    def started(self, execution: Execution, step: int) -> None:
        self.execution = execution
        execution.make_current()
        start_follower(execution)
        self._resumed("", step)

    def began(self, i: int, execution: str, step: int) -> None:
        replica = Execution.find(execution)
        if self.execution is not None and replica is not None:
            self.execution.add_replica(replica)
        self._resumed(f"seed {self._stage.params.seed + i} ", step)

    def record(self, record: Record) -> None:
        if isinstance(record, Update):
            self._advance(1)
        elif isinstance(record, Validation):
            self._tell(f"{record.split} loss {record.loss:.4f} nats/token")
        else:
            self._stage.warn(str(record))

    def progress(self, updates: int) -> None:
        self._advance(updates)
        if self._stage.params.replicas > 1:  # a single run tells its measurements
            self._tell("")

    def diverged(self, i: int, divergence: Divergence) -> None:
        self._stage.warn(f"seed {self._stage.params.seed + i} {divergence}")

    def failed(self, i: int, problem: str) -> None:
        self._stage.warn(f"seed {self._stage.params.seed + i} failed: {problem}")

    def _resumed(self, who: str, step: int) -> None:
        if step:
            self._stage.say(f"{who}goes on after update {step} of an interrupted run")
            self._advance(step)

    def _advance(self, updates: int) -> None:
        self._done += updates
        self._bar.update(updates)  # which counts on a terminal only

    def _tell(self, what: str) -> None:
        total = int(self._bar.total or 1)
        if not self._bar.disable:
            self._bar.set_postfix_str(what)
        elif self._done * 10 // total > self._shown:
            self._shown = self._done * 10 // total
            self._stage.say(f"update {self._done} of {total}" + (f", {what}" if what else ""))


Trained = tuple[Execution, list[Path], list[Outcome]]


def train_one(tasks: Sequence[Task], splits: Mapping[str, Sentences], stop: Stop, progress: Progress) -> Trained:
    """One run, in this process: its execution, the folder of its checkpoint, and what came of it."""
    checkpoint = run_task(tasks[0], splits, stop, progress)
    assert progress.execution is not None  # noqa: S101 (for the type checker: it was started)
    return progress.execution, [checkpoint.folder], [Outcome.read(checkpoint.folder, tasks[0].inputs)]


def train_together(tasks: Sequence[Task], splits: Mapping[str, Sentences], stop: Stop, progress: Progress) -> Trained:
    """One run by several processes: forks of this one, or those of torchrun, of which this is rank 0."""
    if launched():
        folder = take_part(tasks[0], splits, stop, progress)
    else:
        folder = run_processes(tasks[0], splits, stop, progress)
    assert progress.execution is not None and folder is not None  # noqa: S101, PT018 (for the type checker)
    return progress.execution, [folder], [Outcome.read(folder, tasks[0].inputs)]


def follow(task: Task, splits: Mapping[str, Sentences]) -> None:
    """What a process of torchrun's does that is not rank 0: the same updates, of which it writes nothing."""
    try:
        with Stop() as stop:
            take_part(task, splits, stop, Listener())
    except LabError as error:
        sys.exit(f"error: {error}")  # the execution is rank 0's to close
    except KeyboardInterrupt as interrupt:
        sys.exit(128 + int(interrupt.args[0]))


def train_replicas(tasks: Sequence[Task], splits: Mapping[str, Sentences], stop: Stop, progress: Progress) -> Trained:
    """A process a seed, under one execution that goes on as well when it is interrupted."""
    execution, group = open_group(tasks)
    progress.started(execution, 0)
    tasks = [replace(task, parent=execution.id) for task in tasks]
    found = run_tasks(tasks, splits, tasks[0].settings.workers, stop, progress)
    return execution, [group.folder, *(folder for folder, _ in found)], [outcome for _, outcome in found]


def open_group(tasks: Sequence[Task]) -> tuple[Execution, Checkpoint]:
    """The execution of several replicas, new or gone on with, and what remembers it: held as long as they train."""
    group = Checkpoint(tasks[0].inputs | {"replicas": len(tasks)})
    execution = Execution.find(group.execution()) if tasks[0].settings.resume else None
    if execution is None or not execution.has(tasks[0].params):
        execution = Execution.create("trained", tasks[0].params, environment=tasks[0].environment)
        group.claim(execution.id)
    else:
        execution.resume()
    return execution, group


def replica_folder(folder: Path, task: Task) -> Path:
    """Of the seed of a replica, below the folder of the model; the first replica is the model."""
    return folder / "replicas" / str(task.settings.seed)


def save_outcome(outcome: Outcome, task: Task, folder: Path, vocab_md5: str) -> None:
    """The model as any stage loads it, with what it was trained with."""
    about: dict[str, Any] = {
        "training": trained_with(task.settings),
        "vocab_md5": vocab_md5,
        "updates": len(outcome.updates),
        "parameters": sum(weight.numel() for weight in outcome.weights.values()),
    }
    if outcome.divergence is not None:
        about["diverged_at"] = outcome.divergence.step
        about["last_finite"] = asdict(outcome.validations[-1]) if outcome.validations else None
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(outcome.weights, model_config(task.settings, task.vocab_size), folder, about)


def trained_with(settings: TrainParams) -> dict[str, Any]:
    """What a result depends on. How it was computed is named where it is not the usual way; a device never is."""
    usual = {key: TrainParams.model_fields[key].default for key in ("precision", *IN_LAST_DIGITS)}
    found = settings.model_dump(exclude={*WITHOUT_EFFECT, "device"})
    return {key: value for key, value in found.items() if key not in usual or value != usual[key]}


def save_snapshots(outcome: Outcome, folder: Path) -> None:
    """The weights on the way, beside the model."""
    for path in outcome.snapshots.values():
        target = folder / SNAPSHOTS / path.name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)


if __name__ == "__main__":
    run(main)

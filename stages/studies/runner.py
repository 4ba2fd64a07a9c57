"""Runs the variants of a study with all their seeds: one process tree, imports and prepared data shared.

What takes time is not done a variant at a time: the text is prepared once for all variants that read the same, every
run of every variant waits in one queue for a core, and what follows training (evaluation, figures, DVC) is done
for as many variants at once as there are cores. The stages' own code does all of it, so that the bytes are those of
`dvc exp run`.

This module is above the stages, as `dvc` is: it calls them.
"""

from __future__ import annotations

import stages.numerics as numerics  # isort: skip (before NumPy)
import multiprocessing
import multiprocessing.connection
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from stages import evaluate, files, paths, plots, prepare, train, vocab
from stages.analysis.words import counted
from stages.cores import available_cores
from stages.errors import LabError, TrainingError
from stages.execution import OWNER, Execution
from stages.params import Params, PrepareParams, TrainParams, VocabParams
from stages.stage import Stage
from stages.studies import done, processes, workspace
from stages.studies.jobs import Account, Job, Progress, Say, close_all
from stages.studies.other_code import run_elsewhere
from stages.studies.plan import Plan, Variant, experiment_name
from stages.tracking import outbox
from stages.tracking.tracking import results_fingerprint
from stages.training.kept import discard
from stages.training.records import count_updates
from stages.training.replicas import attempt_tasks
from stages.training.runs import Outcome, Stop, Task
from stages.training.session import epochs_of

_ATTEMPTS = 2


def run_variants(
    plan: Plan,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    *,
    workers: int = 0,
    suffix: str = "",
    say: Say = print,
) -> Account:
    """Make an experiment of each variant that has none yet.

    Args:
        plan: the study that they are of.
        variants: of it.
        seeds: that follow each other.
        workers: processes at once; 0 for one a core.
        suffix: of the names of the experiments.
        say: is told what happens, a line each.

    Raises:
        KeyboardInterrupt: it was stopped; runs that were under way have saved a checkpoint.
        RepositoryError: the repository cannot be used, or another study is being run in it.
    """
    base = workspace.baseline()
    account = Account()
    waiting: list[Variant] = []
    for variant in variants:
        name = experiment_name(plan.study.name, variant, suffix)
        if (found := done.find(variant, seeds)) is not None:
            workspace.name_again(found.commit, found.baseline, name)
            account.known.append(variant.name)
        else:
            waiting.append(variant)
    if account.known:
        say(f"{len(account.known)} of {len(variants)} variants have been run: they are not run again")
    groups: dict[str, list[Variant]] = {}
    elsewhere = [variant for variant in waiting if variant.code]
    for variant in waiting:
        if not variant.code:
            groups.setdefault(_data_of(variant.params), []).append(variant)
    os.environ[OWNER] = str(os.getpid())
    with workspace.alone(), _temporary_folder() as folder:
        # All copies first: an edit of code or text while others train has no part in any of them.
        together = [
            [
                Job(
                    one,
                    seeds,
                    experiment_name(plan.study.name, one, suffix),
                    workspace.make_workspace(folder, one.with_seeds(seeds)),
                )
                for one in same_data
            ]
            for same_data in groups.values()
        ]
        for jobs in together:
            first = jobs[0].folder
            preparing = processes.start(_prepare, first, jobs[0].log)
            preparing.join()
            if preparing.exitcode:
                for job in jobs:
                    job.problems = {"prepare": processes.last_words(jobs[0].log)}
                    account.fail(job, say)
                continue
            _train(jobs, workers, say, account)
            _finish(jobs, base, workers, say, account)
        for variant in elsewhere:
            _run_elsewhere(Job(variant, seeds, experiment_name(plan.study.name, variant, suffix), folder), say, account)
    return account


def _run_elsewhere(job: Job, say: Say, account: Account) -> None:
    """A variant with code of its own, tried twice as the others are."""
    say(f"{job.variant.name}: `dvc exp run` at {job.variant.code}")
    for attempt in range(_ATTEMPTS):
        try:
            made = run_elsewhere(job.variant, job.seeds, workspace.free_name(job.name, job.variant.commit), job.folder)
        except LabError as error:
            job.problems = {"dvc exp run": str(error)}
            if attempt + 1 < _ATTEMPTS:
                say(f"{job.variant.name} failed and is tried once more: {error}")
            continue
        done.record(job.variant, job.seeds, made)
        account.ran.append(job.variant.name)
        return
    account.fail(job, say)


def _train(jobs: Sequence[Job], workers: int, say: Say, account: Account) -> None:
    """Every run of every variant, as far as they get."""
    first = jobs[0].folder
    for job in jobs[1:]:
        workspace.share_data(first, job.folder)
    with workspace.inside(first):
        _, splits = train.load_text()
    numerics.set_numerics(jobs[0].variant.params.numerics)
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, context, initializer=processes.end_by_signals) as elsewhere:
        found = list(elsewhere.map(_tasks_of, [job.folder for job in jobs]))
    updates = 0
    for job, (tasks, count, problem) in zip(jobs, found, strict=True):
        updates += count
        job.tasks, job.problems = tasks, {"train": problem} if problem else {}
        if len(tasks) > 1:
            with workspace.inside(job.folder), _named(job.name):
                job.execution, job.group = train.open_group(tasks)
                job.tasks = [replace(task, parent=job.execution.id) for task in tasks]
    listed = [(job, i) for job in jobs for i in range(len(job.tasks))]
    say(f"{counted(len(jobs), 'variant')}, {counted(len(listed), 'run')}, {updates} updates")
    tqdm.monitor_interval = 0  # its thread and the forks of runs do not go together
    for attempt in range(_ATTEMPTS):
        left = [(job, i) for job, i in listed if i not in job.folders]
        if not left:
            break
        if attempt:
            say(f"{len(left)} run(s) failed and are tried once more")
        with Stop() as stop, tqdm(total=updates, unit="update", disable=None, leave=False) as bar:
            try:
                tasks = [job.tasks[i] for job, i in left]
                folders, problems = attempt_tasks(tasks, splits, workers, stop, Progress(left, bar, say, account))
            except KeyboardInterrupt:
                close_all(jobs)
                raise
        for n, folder in folders.items():
            left[n][0].folders[left[n][1]] = folder
        for job, _ in left:
            job.problems = {}
        for n, problem in problems.items():
            job, i = left[n]
            job.problems[f"seed {job.tasks[i].settings.seed}"] = problem


def _tasks_of(folder: Path) -> tuple[list[Task], int, str]:
    """A run a seed, their updates, and what forbids them, by a process of its own.

    Torch settles how it computes when it is first asked, so this process, which all runs are forks of, never asks.
    """
    os.chdir(folder)
    try:
        stage = Stage("train", TrainParams)
        vocab_size, splits = train.load_text()
        tasks = train.tasks_of(stage, vocab_size)
        updates = count_updates(epochs_of(splits["train"], stage.params).per_epoch, stage.params)
    except LabError as error:
        return [], 0, str(error)
    return tasks, len(tasks) * updates, ""


def _finish(jobs: Sequence[Job], base: str, workers: int, say: Say, account: Account) -> None:
    """Evaluation, figures and an experiment of DVC for each variant all of whose runs are over."""
    whole = [job for job in jobs if not job.problems]
    for job in jobs:
        if job.problems:
            account.fail(job, say)
    running: dict[Any, tuple[Job, Any]] = {}
    again: list[Job] = []
    with _all_ended(running, jobs), tqdm(total=len(whole), unit="variant", disable=None, leave=False) as bar:
        while whole or running:
            while whole and len(running) < (workers or available_cores()):
                job = whole.pop(0)
                process = processes.start(partial(_evaluate, job), job.folder, job.log)
                running[process.sentinel] = job, process
            for sentinel in multiprocessing.connection.wait(list(running)):
                job, process = running.pop(sentinel)
                process.join()
                if process.exitcode and job not in again:
                    why = processes.last_words(job.log)
                    say(f"{job.variant.name} failed after training and is tried once more: {why}")
                    again.append(job)
                    whole.append(job)
                    continue
                bar.update()
                if process.exitcode:
                    job.problems = {"after training": processes.last_words(job.log)}
                    account.fail(job, say)
                    continue
                commit = workspace.make_experiment(job.folder, workspace.free_name(job.name, base), base)
                done.record(job.variant, job.seeds, done.Done(commit=commit, baseline=base))
                account.ran.append(job.variant.name)
                for folder in [*job.folders.values(), *([job.group.folder] if job.group is not None else [])]:
                    discard(folder)
                shutil.rmtree(job.folder, ignore_errors=True)


@contextmanager
def _all_ended(running: dict[Any, tuple[Job, Any]], jobs: Sequence[Job]) -> Iterator[None]:
    """Stopped by a signal, no process goes on, and the journals say so; training is over and kept."""
    try:
        yield
    except KeyboardInterrupt:
        for _, process in running.values():
            process.kill()
            process.join()
        close_all(jobs)
        raise


def _evaluate(job: Job) -> None:
    """In a process of its own: what comes after training, as the stages do it."""
    os.environ["DVC_EXP_NAME"] = job.name
    outcomes = [Outcome.read(job.folders[i], task.inputs) for i, task in enumerate(job.tasks)]
    train.save(job.tasks, outcomes)
    execution = job.execution or Execution.find(job.execution_of(0))
    if execution is None:
        raise TrainingError("the journal of its runs is gone")
    execution.append_event("trained")
    evaluate.main()
    plots.main()
    workspace.commit_outputs()
    fingerprint = results_fingerprint()
    outbox.set_fingerprint(execution, fingerprint, Path())  # by which `noam sync` finds the results of this execution
    if not execution.ended():
        execution.append_event("finished")
    files.write_json(paths.TRACKED, {"fingerprint": fingerprint})
    workspace.commit_outputs(["track"])


def _prepare() -> None:
    prepare.main()
    vocab.main()


def _data_of(params: Params) -> str:
    """What the prepared text depends on, and how is computed: variants that share it share the process tree."""
    keys = PrepareParams.model_fields.keys() | VocabParams.model_fields.keys() | {"numerics"}
    return files.sha256_json(params.model_dump(include=set(keys)))


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    folder = Path(".dvc/tmp/exps").resolve() / f"noam-{os.getpid()}"
    for left in folder.parent.glob("noam-*"):  # by one that was killed: no other is under way
        shutil.rmtree(left, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _named(name: str) -> Iterator[None]:
    os.environ["DVC_EXP_NAME"] = name
    try:
        yield
    finally:
        del os.environ["DVC_EXP_NAME"]

"""Bringing executions into MLflow: one after its last stage, or everything that is missing (`noam sync`).

Run as a process by `stages.tracking.attempt`, which can end it when the store hangs: `python -m stages.tracking.sync`.
Every step may be killed and repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import Timeout

from stages import paths
from stages.errors import LabError, TrackingError
from stages.execution import Execution
from stages.tracking import outbox, restore, sources
from stages.tracking.fingerprint import fingerprint_of_folder, fingerprint_of_revision, is_intact
from stages.tracking.groups import adopt, members
from stages.tracking.names import TAG_GROUP
from stages.tracking.replay import STATUS, is_renewed, last_end, mark_fingerprint, newest_run
from stages.tracking.results import send_results
from stages.tracking.runs import Runs
from stages.tracking.store import (
    TAG_COMPLETE,
    TAG_EXECUTION,
    TAG_FINGERPRINT,
    Progress,
    Store,
    connect,
    silent,
    tracking_errors,
)
from stages.tracking.studies import missing_members, send_study
from stages.tracking.view import refresh_view

if TYPE_CHECKING:
    from mlflow.entities import Run

_STALE = "ended without a word (killed, or the machine went down); found so afterwards"
_OTHERS_SECONDS = 20  # that a pipeline spends on executions that are not its own


@dataclass
class Account:
    """What a sync did, for the user."""

    brought: list[str] = field(default_factory=list)
    present: int = 0
    running: int = 0
    deleted: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)  # executions of ours, which should not be
    absent: list[tuple[str, str]] = field(default_factory=list)  # experiments and commits of which DVC has no files
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The account in words."""
        counts = [f"{len(self.brought)} brought", f"{self.present} already there"]
        counts += [f"{self.running} under way"] if self.running else []
        counts += [f"{self.deleted} deleted in MLflow and left so"] if self.deleted else []
        could_not = [*self.failed, *self.absent]
        counts += [f"{len(could_not)} could not"] if could_not else []
        return [f"note: {note}" for note in self.notes] + [
            *(f"brought {name}" for name in self.brought),
            *(f"could not: {name}: {reason}" for name, reason in could_not),
            f"runs: {', '.join(counts)}",
        ]


def sync_all() -> int:
    """`noam sync`: bring into MLflow whatever it has not got. Returns the exit code.

    It is 0 unless an execution of this workspace has lost its results before MLflow got them.

    Raises:
        TrackingError: the store cannot be reached.
    """
    store = connect(timeout=20)
    account = Account(notes=list(store.notes))
    with tracking_errors(store.uri):
        sync_executions(store, account)
        sync_results(store, account)
        refresh_view(store)
    for line in account.lines():
        print(line)
    return 1 if account.failed else 0


def sync_executions(
    store: Store, account: Account, *, progress: Progress = silent, only_pending: bool = False, seconds: float = 0
) -> None:
    """Bring in every execution that has a record here, the oldest first; stale ones become KILLED.

    Replicas come with the execution that they belong to, and are counted with it.

    Args:
        only_pending: leave out those whose files would have to come from DVC.
        seconds: stop after that time; 0 for no end.
    """
    until = time.monotonic() + seconds if seconds else float("inf")
    runs = _by_execution(store.runs())
    revisions = [] if only_pending else sources.revisions()
    executions = sorted(Execution.all(), key=lambda one: one.record.started)
    adopt(executions)
    replicas = {replica.id for one in executions for replica in members(one)}
    for execution in executions:
        if time.monotonic() > until:
            return
        if execution.id in replicas or not (execution.folder / "execution.json").is_file():
            continue  # the second: a replica whose half made group was removed just now
        run = runs.get(execution.id)
        if run is not None and run.info.lifecycle_stage == "deleted" and not is_renewed(execution, run):
            outbox.drop(execution)
            account.deleted += 1
        elif run is not None and _is_whole(execution, runs):
            outbox.drop(execution)
            _add_experiments(store, run.info.run_id, run.data.tags, execution)
            account.present += 1
        else:
            _sync_one(store, execution, account, progress, None if only_pending else revisions)


def sync_results(store: Store, account: Account, progress: Progress = silent) -> None:
    """Bring in results that no execution here has made: of the workspace, of HEAD, of DVC's experiments."""
    root = paths.main_root()
    revisions = sources.revisions()
    known = {run.data.tags.get(TAG_FINGERPRINT) for run in store.runs()}
    handled = {outbox.fingerprint_of(one) for one in Execution.all()}
    of_workspace = fingerprint_of_folder(root)
    if of_workspace and of_workspace not in known | handled and sources.has_results(root) and is_intact(root):
        _bring(store, account, of_workspace, None, root, progress)
        known.add(of_workspace)
    for revision in revisions:
        fingerprint = fingerprint_of_revision(root, revision.commit)
        if not fingerprint:
            continue
        if fingerprint in known:
            if revision.experiment:
                add_experiment(store, fingerprint, revision.experiment)
        elif fingerprint not in handled:
            known.add(fingerprint)
            try:
                with sources.results_of(fingerprint, None, [revision]) as folder:
                    _bring(store, account, fingerprint, revision, folder, progress)
            except TrackingError as error:
                account.absent.append((str(revision), str(error)))


def sync_one(store: Store, execution: Execution, folder: Path | None, progress: Progress = silent) -> str:
    """Bring one execution into its run, and its replicas into theirs: journals, results in `folder`, status.

    To be called with the execution's lock held. Returns the run's name.
    """
    fingerprint = outbox.fingerprint_of(execution)
    runs = Runs.open(store, execution, progress)
    own = runs.own
    if own.deleted:
        return own.name
    runs.metrics()
    if fingerprint is not None:
        mark_fingerprint(own, fingerprint)
        if folder is not None:
            send_results(runs, folder, fingerprint)
    runs.status()
    _add_experiments(store, own.run_id, own.tags, execution)
    if folder is not None:
        outbox.drop(execution)
    return own.name


def add_experiment(store: Store, fingerprint: str, name: str) -> None:
    """Add DVC's name of an experiment to the newest run with these results."""
    runs = store.tagged(TAG_FINGERPRINT, fingerprint)
    known = [names for run in runs for names in run.data.tags.get("dvc.experiment", "").split(", ") if names]
    if runs and name and name not in known:
        own = runs[-1].data.tags.get("dvc.experiment", "")
        store.client.set_tag(runs[-1].info.run_id, "dvc.experiment", f"{own}, {name}" if own else name)


def track_restored(store: Store, folder: Path, fingerprint: str, experiment: str, progress: Progress = silent) -> bool:
    """Results that were not trained just now: the runs that have them are made whole, or one is made.

    Returns:
        True if something was sent; False if a run has it all, which then bears the experiment's name as well.
    """
    with restore.restoring():
        runs = _by_execution(store.tagged(TAG_FINGERPRINT, fingerprint))
        own = outbox.with_fingerprint(fingerprint)
        groups = [run for one in own if members(one) for run in store.tagged(TAG_GROUP, one.id)]
        broken = [one for one in own if not _is_whole(one, runs | _by_execution(groups))]
        if runs and not broken:
            add_experiment(store, fingerprint, experiment)
            return False
        for execution in broken or [restore.restored_execution(folder, fingerprint)]:
            with execution.lock(timeout=60):
                if last_end(execution) != "finished":  # track was stopped half way the last time
                    execution.append_event("finished")
                sync_one(store, execution, folder, progress)
        add_experiment(store, fingerprint, experiment)
        return True


def main() -> None:
    """The process that `stages.tracking.attempt` watches: progress and outcome go to stdout, a JSON object a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--execution", default="", help="id of the execution that made the results; '' for none")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--fingerprint", help="of the results in this folder")
    what.add_argument("--study", type=Path, help="folder with the report of a study")
    parser.add_argument("--experiment", default="")
    arguments = parser.parse_args()
    folder = Path.cwd()
    sys.stdout = sys.stderr  # of this process, which MLflow may chat on; messages go to the original
    try:
        store = connect(timeout=5, progress=_say)
        with tracking_errors(store.uri):
            if arguments.study is not None:
                _tell("done", _sync_study(store, arguments.study))
                return
            if arguments.execution:
                execution = Execution(paths.run_state() / "executions" / arguments.execution)
                with execution.lock(timeout=60):
                    sync_one(store, execution, folder, _say)
            else:
                track_restored(store, folder, arguments.fingerprint, arguments.experiment, _say)
            _tell("done", "; ".join(store.notes))
            refresh_view(store)
            sync_executions(store, Account(), progress=_say, only_pending=True, seconds=_OTHERS_SECONDS)
    except (LabError, Timeout) as error:
        _tell("error", str(error))
        sys.exit(1)


def _sync_study(store: Store, folder: Path) -> str:
    """Bring in the runs that have been made, then the study that compares them. Returns what to tell the user."""
    account = Account(notes=list(store.notes))
    sync_executions(store, account, progress=_say)
    if missing_members(store, folder):  # made on other machines
        sync_results(store, account, _say)
    told = send_study(store, folder, _say)
    refresh_view(store)
    failed = f"{len(account.failed)} run(s) could not be brought, `noam sync` says why" if account.failed else ""
    return "; ".join(filter(None, [*account.notes, told, failed]))


def _say(what: str) -> None:
    _tell("progress", what)


def _tell(kind: str, what: str) -> None:
    print(json.dumps({kind: what}), file=sys.__stdout__, flush=True)


def _by_execution(runs: Iterable[Run]) -> dict[str, Run]:
    """The run of each execution by its id."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        if TAG_EXECUTION in run.data.tags:
            found.setdefault(run.data.tags[TAG_EXECUTION], []).append(run)
    return {identity: newest_run(several) for identity, several in found.items()}


def _is_whole(execution: Execution, runs: dict[str, Run]) -> bool:
    """Nothing of this execution and its replicas is missing in MLflow; nor of one whose run somebody deleted."""
    run = runs.get(execution.id)
    if run is None:
        return False
    if run.info.lifecycle_stage == "deleted":
        return not is_renewed(execution, run)
    has_results = outbox.fingerprint_of(execution) is not None
    return _has_all(execution, run, has_results) and all(
        one.id in runs and _has_all(one, runs[one.id], has_results, execution.id) for one in members(execution)
    )


def _has_all(execution: Execution, run: Run, has_results: bool, group: str = "") -> bool:
    """Its run has the right end, all results where there are any, and belongs to that group."""
    tags, status = run.data.tags, run.info.status
    if run.info.lifecycle_stage == "deleted":
        return True
    if has_results:
        whole = tags.get(TAG_COMPLETE) == "yes" and status == "FINISHED"
    else:
        whole = execution.ended() and status == STATUS[last_end(execution)]
    return whole and group in ("", tags.get(TAG_GROUP))


def _sync_one(
    store: Store, execution: Execution, account: Account, progress: Progress, revisions: list[sources.Revision] | None
) -> None:
    """One execution of `sync_executions`; what goes wrong with its files is noted and stops no other.

    Without `revisions` its files come from the outbox or not at all.
    """
    try:
        with execution.lock(timeout=0):
            if restore.is_half_made(execution):
                if not execution.alive():
                    restore.remove(execution)
                return
            if not execution.ended():
                if execution.alive():
                    account.running += 1
                    return
                execution.append_event("killed", _STALE)
            fingerprint = outbox.fingerprint_of(execution)
            if fingerprint is None:
                account.brought.append(sync_one(store, execution, None, progress))
                return
            if _replaced(store, execution, fingerprint):
                account.present += 1
                return
            if revisions is not None or outbox.kept(execution) is not None:
                _sync_with_files(store, execution, fingerprint, account, progress, revisions or [])
    except Timeout:
        account.running += 1


def _sync_with_files(
    store: Store,
    execution: Execution,
    fingerprint: str,
    account: Account,
    progress: Progress,
    revisions: list[sources.Revision],
) -> None:
    try:
        with sources.results_of(fingerprint, execution, revisions) as folder:
            account.brought.append(sync_one(store, execution, folder, progress))
    except (LabError, OSError) as error:
        sync_one(store, execution, None, progress)
        account.failed.append((f"the files of {execution.id}", str(error)))


def _replaced(store: Store, execution: Execution, fingerprint: str) -> bool:
    """A restored execution whose results another run has by now: that run gets its names, and it goes."""
    others = store.tagged(TAG_FINGERPRINT, fingerprint)
    if execution.record.kind != "restored" or not others:
        return False
    if any(run.data.tags.get(TAG_EXECUTION) == execution.id for run in others):
        return False
    for name in outbox.experiments_of(execution):
        add_experiment(store, fingerprint, name)
    restore.remove(execution)
    return True


def _bring(
    store: Store,
    account: Account,
    fingerprint: str,
    revision: sources.Revision | None,
    folder: Path,
    progress: Progress,
) -> None:
    try:
        with restore.restoring():
            execution = restore.restored_execution(folder, fingerprint, revision)
        with execution.lock(timeout=60):
            account.brought.append(sync_one(store, execution, folder, progress))
    except (LabError, OSError) as error:
        if isinstance(error, TrackingError) and revision is None:
            raise
        account.failed.append((str(revision or "the workspace's results"), str(error)))


def _add_experiments(store: Store, run_id: str, tags: dict[str, str], execution: Execution) -> None:
    """Names that DVC gave to the results of this execution, into the run's tag."""
    present = [name for name in tags.get("dvc.experiment", "").split(", ") if name]
    missing = [name for name in outbox.experiments_of(execution) if name not in present]
    if missing:
        store.client.set_tag(run_id, "dvc.experiment", ", ".join([*present, *missing]))


if __name__ == "__main__":
    main()

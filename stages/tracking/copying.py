"""Runs copied between stores: `noam sync --to URI` and `noam sync --from URI`.

What is copied: runs with parameters, every point of their metrics, tags, notes, status and times, artifacts, models,
datasets, and the tags of the experiment. Ids of runs in tags, notes and models become those of the other store. Copying
again sends what is missing; what differs on both sides is never overwritten, but named.

Several people may copy to one server at once, also the same runs, without a lock, which a dead holder would keep and a
sleeping one would lose. Who misses a run creates it, and only then looks who else has: of several the one with the
least claim (`noam.claim`, set when it is created, never changed) counts, the others are deleted, and everybody fills
that one. What is in it has names of its own, so that filling it twice at once changes nothing. Creating comes before
looking, so of two who create at once one sees both, and the least is deleted by nobody. This holds for any store that
shows what it has confirmed, whatever the clocks; it guarantees one run when all are done, not while they work. A kill
leaves a run RUNNING, which the next copying goes on with.

mlflow-export-import is not used: it makes new runs each time, knows no models of runs, and keeps no ids in tags.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stages.errors import TrackingError
from stages.tracking import address
from stages.tracking.copying_models import drop_models
from stages.tracking.copying_names import (
    TAG_CLAIM,
    TAG_COPY,
    Identity,
    Names,
    by_identity,
    identity_of,
    is_deleted,
    resumed,
)
from stages.tracking.copying_run import Copying, first_tags, is_known, is_unfinished
from stages.tracking.names import STUDY, TAG_PARENT, TAG_ROLE, note_tags
from stages.tracking.store import (
    TAG_FINGERPRINT,
    Progress,
    Store,
    absolute,
    connect,
    database_file,
    probe,
    silent,
    tracking_errors,
    tracking_uri,
    waiting_lock,
)
from stages.tracking.view import SHARED_VIEW, refresh_view

if TYPE_CHECKING:
    from mlflow.entities import Run

_PASSES = 6  # a pass that sends nothing ends it; each sees what others have made since the one before
_TRIES = 4
_ENDED = ("FINISHED", "FAILED", "KILLED")


@dataclass
class Account:
    """What a copying did, for the user; runs by their identity, so that each is counted once."""

    names: dict[Identity, str] = field(default_factory=dict)
    made: dict[Identity, None] = field(default_factory=dict)  # in order
    updated: dict[Identity, None] = field(default_factory=dict)
    present: set[Identity] = field(default_factory=set)
    running: set[Identity] = field(default_factory=set)
    deleted: set[Identity] = field(default_factory=set)
    differing: dict[Identity, list[str]] = field(default_factory=dict)
    failed: dict[Identity, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    experiment: list[str] = field(default_factory=list)  # its tags that differ

    @property
    def good(self) -> bool:
        """The other store has everything as it is here."""
        return not (self.differing or self.failed or self.experiment)

    def lines(self) -> list[str]:
        """The account in words."""
        updated = [one for one in self.updated if one not in self.made]
        present = self.present - self.made.keys() - self.updated.keys() - self.failed.keys()
        counts = [f"{len(self.made)} copied", f"{len(present)} already there"]
        counts += [f"{len(updated)} brought up to date"] if updated else []
        running = self.running - self.made.keys()
        counts += [f"{len(running)} under way"] if running else []
        counts += [f"{len(self.deleted)} deleted in MLflow and left so"] if self.deleted else []
        counts += [f"{len(self.differing)} with differences"] if self.differing else []
        counts += [f"{len(self.failed)} could not"] if self.failed else []
        return [f"note: {note}" for note in self.notes] + [
            *(f"copied {self.names[one]}" for one in self.made),
            *(f"brought up to date {self.names[one]}" for one in updated),
            *(f"differs, left as it is there: {self.names[one]}: {'; '.join(x)}" for one, x in self.differing.items()),
            *(f"differs, left as it is there: the experiment: {what}" for what in self.experiment),
            *(f"could not: {self.names[one]}: {reason}" for one, reason in self.failed.items()),
            f"runs: {', '.join(counts)}",
        ]


def copy_all(*, to: str | None = None, source: str | None = None) -> int:
    """Copy the runs of this project to another store (`to`), or those of another one (`source`) here.

    Returns:
        The exit code: 0 unless something differs or could not be copied.

    Raises:
        TrackingError: one of the stores cannot be used.
    """
    other_uri = checked(to if to is not None else source or "", must_exist=to is None)
    own = connect(timeout=20)
    other = connect(other_uri, timeout=20)
    account = Account(notes=[*own.notes, *other.notes])
    here, there = (own, other) if to is not None else (other, own)
    with tracking_errors(there.uri):
        copy_runs(here, there, account)
        copy_experiment(here, there, account)
    for line in account.lines():
        print(line)
    return 0 if account.good else 1


def checked(uri: str, *, must_exist: bool = False) -> str:
    """The address of another store.

    Raises:
        TrackingError: it is none that can be copied to or from.
    """
    allowed = "expected http://…, https://… or sqlite:///FILE"
    if not uri.startswith(("http://", "https://", "sqlite:///")) or any(letter.isspace() for letter in uri[:8]):
        raise TrackingError(f"{address.without_user(uri)!r} is no address of a store: {allowed}")
    address.check(uri, "the other store")
    file = database_file(uri)
    if absolute(uri) == tracking_uri() or (file is not None and file == database_file(tracking_uri())):
        raise TrackingError(f"{uri} is the store of this project; name another one: {allowed}")
    if must_exist and file is not None and not file.is_file():
        raise TrackingError(f"{file}: no such database")
    return uri


def copy_runs(source: Store, target: Store, account: Account, progress: Progress = silent) -> None:
    """Copy whatever the target has not got, until a look at all of it finds nothing missing."""
    token = uuid.uuid4().hex[:8]
    for _ in range(_PASSES):
        if not _Pass(source, target, account, progress, token).do():
            return


class _Pass:
    """One look at all runs of both stores.

    Args:
        source: where the runs are.
        target: where they should be.
        account: of what is done.
        progress: is told of every step.
        token: of this process.
    """

    def __init__(self, source: Store, target: Store, account: Account, progress: Progress, token: str) -> None:
        self.source, self.target, self.account, self.progress, self.token = source, target, account, progress, token
        self.runs = list(source.runs())
        self.there = by_identity(target.runs())
        self.names = Names((source.experiment_id, target.experiment_id))
        self.copies: dict[Identity, Run] = {}
        self.sent = False

    def do(self) -> bool:
        """True if something was sent."""
        wanted = self._wanted()
        for run in wanted:
            account, identity = self.account, identity_of(run)
            account.names[identity] = str(run.info.run_name)
            found = _counting(run, self._settled(self.there.get(identity, []), run))
            if found is not None:
                self._know(run, found)
        for family in _families(wanted):
            missing = [run for run in family if identity_of(run) not in self.copies]
            for run in missing:
                self._know(run, self._claim(run))
            for run in reversed(family):  # a parent after its children: when it is there, they are
                self._bring(run, identity_of(run) in {identity_of(one) for one in missing})
        return self.sent

    def _wanted(self) -> list[Run]:
        """Runs that are over, one for each identity, studies last; the others are counted."""
        found, under_way = [], set()
        for identity, runs in by_identity(self.runs).items():
            there = [run for run in runs if not is_deleted(run)]
            if not there:
                self.account.deleted.add(identity)
                continue
            run = min(there, key=_order)
            if run.info.status in _ENDED:
                found.append(run)
            else:
                under_way.add(run.info.run_id)
                self.account.running.add(identity)
        ready = []
        for run in found:  # replicas come with the run that sums them up
            if run.data.tags.get(TAG_PARENT) in under_way:
                self.account.running.add(identity_of(run))
            else:
                ready.append(run)
        ready = [run for run in ready if not self._is_elsewhere(run)]
        return sorted(ready, key=lambda run: (run.data.tags.get(TAG_ROLE) == STUDY, run.info.start_time))

    def _is_elsewhere(self, run: Run) -> bool:
        """Results that were only restored here, of which the target has another run: that one stands for it."""
        identity, fingerprint = identity_of(run), run.data.tags.get(TAG_FINGERPRINT)
        if run.data.tags.get("noam.kind") != "restored" or identity in self.there:
            return False
        parents = {one.info.run_id: one for one in self.runs}
        head = parents.get(run.data.tags.get(TAG_PARENT, ""), run)
        fingerprint = head.data.tags.get(TAG_FINGERPRINT)
        if not fingerprint or identity_of(head) in self.there:
            return False
        same = [
            one
            for runs in self.there.values()
            for one in runs
            if one.data.tags.get(TAG_FINGERPRINT) == fingerprint and not is_deleted(one) and not is_unfinished(one)
        ]
        if not same or identity in self.account.made:
            return False
        if run is head:
            self.names.ids[run.info.run_id] = same[0].info.run_id
        self.account.present.add(identity)
        return True

    def _know(self, run: Run, copy: Run) -> None:
        self.copies[identity_of(run)] = copy
        if not is_deleted(copy):
            self.names.ids[run.info.run_id] = copy.info.run_id

    def _bring(self, run: Run, made: bool) -> None:
        """Bring one run over; an error of the store is tried again, since somebody else may have come between."""
        identity, account = identity_of(run), self.account
        for attempt in range(_TRIES):
            copy = self.copies[identity]
            if is_deleted(copy):
                account.deleted.add(identity)
                return
            if not is_unfinished(copy) and is_known(run, copy, self.names):
                account.present.add(identity)
                account.failed.pop(identity, None)
                return
            unfinished = is_unfinished(copy)
            copying = Copying(self.source, self.target, run, copy, self.names, self.progress)
            try:
                with tracking_errors(self.target.uri):
                    copying.do()
            except TrackingError as error:
                for store in (self.source, self.target):
                    probe(store.uri, timeout=5)
                account.failed[identity] = str(error)
                time.sleep(0.2 * 2**attempt)
                self._know(run, self._claim(run))
                continue
            account.failed.pop(identity, None)
            self._tell(identity, copying, made or unfinished)
            return

    def _tell(self, identity: Identity, copying: Copying, made: bool) -> None:
        account = self.account
        if copying.differing:
            account.differing[identity] = copying.differing
        else:
            account.differing.pop(identity, None)
        if made:
            account.made[identity] = None
        elif copying.sent:
            account.updated[identity] = None
        else:
            account.present.add(identity)
        self.sent |= made or bool(copying.sent)

    def _claim(self, run: Run) -> Run:
        """The run's copy, created if there is none; of several that were created at once the same one for everybody."""
        key, value = identity_of(run)
        with waiting_lock("runs"):  # executions of this workspace may be brought there just now
            found = _counting(run, self._settled(self.target.tagged(key, value), run))
            if found is not None:
                return found
            tags = {**first_tags(run, self.names), TAG_CLAIM: f"{time.time_ns() // 1_000_000:015d}-{self.token}"}
            if key == TAG_COPY:
                tags[TAG_COPY] = value
            made = self.target.client.create_run(
                self.target.experiment_id, start_time=run.info.start_time, tags=tags, run_name=run.info.run_name
            )
        self.progress("created")
        return _counting(run, self._settled(self.target.tagged(key, value), run)) or made

    def _settled(self, found: list[Run], run: Run) -> list[Run]:
        """Remove what was made at the same time as the one that counts."""
        counting = _counting(run, found)
        for other in found:
            if counting is None or other is counting or TAG_CLAIM not in other.data.tags:
                continue
            if resumed(other) <= resumed(counting):
                if not is_deleted(other):
                    self.target.client.delete_run(other.info.run_id)
                drop_models(self.target, other)  # whoever filled it may have made one since
                self.progress("settled")
        return found


def _counting(run: Run, found: Iterable[Run]) -> Run | None:
    """Of the runs with the identity of `run` the one that counts, if there is one.

    One that was deleted before the execution of `run` went on is none of it.
    """
    left = [one for one in found if not (is_deleted(one) and resumed(one) < resumed(run))]
    return min(left, key=_order, default=None)


def _order(run: Run) -> tuple[str, int, str]:
    """Runs that were not copied come first, of those the newest; then by their claims, which never change."""
    claim = run.data.tags.get(TAG_CLAIM, "")
    return claim, 0 if claim else -resumed(run), run.info.run_id


def _families(runs: Iterable[Run]) -> list[list[Run]]:
    """Each run with its children behind it."""
    listed = list(runs)
    ids = {run.info.run_id for run in listed}
    found: dict[str, list[Run]] = {}
    for run in listed:
        parent = run.data.tags.get(TAG_PARENT, "")
        if parent not in ids:
            found.setdefault(run.info.run_id, []).insert(0, run)
        else:
            found.setdefault(parent, []).append(run)
    return list(found.values())


def copy_experiment(source: Store, target: Store, account: Account) -> None:
    """The tags of the experiment that are missing there: views that people share, and what they have noted.

    The prepared views and our own note are made anew from the runs that are there. Somebody else may write the same
    tag just then, which databases refuse: it is tried again.
    """
    for attempt in range(_TRIES):
        try:
            with tracking_errors(target.uri):
                _copy_experiment(source, target, account)
                refresh_view(target)
            return
        except TrackingError:
            probe(target.uri, timeout=5)
            if attempt == _TRIES - 1:
                raise
            time.sleep(0.2 * 2**attempt)


def _copy_experiment(source: Store, target: Store, account: Account) -> None:
    account.experiment.clear()
    here = source.client.get_experiment(source.experiment_id).tags
    there = target.client.get_experiment(target.experiment_id).tags
    names = Names((source.experiment_id, target.experiment_id))
    copies = {identity: min(runs, key=_order) for identity, runs in by_identity(target.runs()).items()}
    for run in source.runs():
        if (copy := copies.get(identity_of(run))) is not None:
            names.ids[run.info.run_id] = copy.info.run_id
    prepared = f"{SHARED_VIEW}noam", f"{SHARED_VIEW}study-"
    for key, value in names.experiment_tags(here).items():
        if key.startswith(prepared):
            continue
        if key not in there:
            target.client.set_experiment_tag(target.experiment_id, key, value)
        elif there[key] != value and not (key in note_tags(here, "") or key in note_tags(there, "")):
            account.experiment.append(f"tag {key}")

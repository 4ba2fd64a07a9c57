"""Runs the variants of a study on other machines, through any engine, and brings their results here.

What somebody has pushed for the same key is taken instead of being run. Each variant is tried at most three times in
all: one whose machine died, or that failed, goes to the queue again. Each result is recorded as it comes, so that
whatever ends this process, the next one goes on from there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stages.errors import LabError
from stages.studies import done, other_code, scratch, workspace
from stages.studies.engines.base import Engine, Event
from stages.studies.jobs import Account, Job, Say
from stages.studies.messages import Result, Work
from stages.studies.plan import Plan, Variant, experiment_name
from stages.studies.remote import versions
from stages.studies.sharing import Remotes, work_of

TRIES = 3


def run_variants_on(
    open_engine: Callable[[], Engine],
    plan: Plan,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    *,
    suffix: str = "",
    say: Say = print,
) -> Account:
    """Make an experiment of each variant that has none yet, here or in the remote.

    Args:
        open_engine: gives the system that runs them; called only where something has to be run.
        plan: the study that they are of.
        variants: of it.
        seeds: that follow each other.
        suffix: of the names of the experiments.
        say: is told what happens, a line each.

    Raises:
        RepositoryError: the repository or its remotes cannot be used, or another study is being run in it.
        StudyError: a text that other machines cannot get, or an engine that is not there or gone.
    """
    head = workspace.baseline()
    remotes = Remotes.of_workspace()
    if remotes.withheld:
        say(f"remote {remotes.dvc}: {', '.join(remotes.withheld)} stays here; each machine needs its own")
    if left := scratch.remove_leftovers():
        say(f"{left} folder(s) of killed processes removed")
    account = Account()
    with workspace.alone():
        waiting: list[tuple[Variant, str]] = []
        for variant in variants:
            name = experiment_name(plan.study.name, variant, suffix)
            if (found := done.find(variant, seeds)) is not None:
                workspace.name_again(found.commit, found.baseline, name)
                account.known.append(variant.name)
            elif (commit := remotes.known(done.key_of(variant, seeds))) and _take(
                remotes, variant, seeds, name, commit, say
            ):
                account.known.append(variant.name)
            else:
                waiting.append((variant, name))
        if account.known:
            say(f"{len(account.known)} of {len(variants)} variants have been run: they are not run again")
        if not waiting:
            return account
        works = [(variant, name, work_of(variant, seeds, name, head, remotes)) for variant, name in waiting]
        sending = _Sending(remotes, seeds, account, say)
        engine = open_engine()
        try:
            sending.run(engine, works)
        finally:
            engine.close()
            sending.forget()
    return account


def _take(remotes: Remotes, variant: Variant, seeds: Sequence[int], name: str, commit: str, say: Say) -> bool:
    """A result that somebody has pushed; where it is of no use, say so, and run the variant."""
    try:
        made = remotes.fetch(variant, seeds, name, commit)
    except LabError as error:
        say(f"warning: {variant.name}: {error}; it is run again")
        return False
    done.record(variant, seeds, made)
    say(f"{variant.name}: taken from the git remote, where somebody has brought it")
    return True


@dataclass
class _Open:
    """A variant that is not back yet."""

    variant: Variant
    name: str
    work: Work
    tries: int = 1
    problems: list[str] = field(default_factory=list)


class _Sending:
    """Sends variants out until each one is back or given up."""

    def __init__(self, remotes: Remotes, seeds: Sequence[int], account: Account, say: Say) -> None:
        self._remotes, self._seeds, self._account, self._say = remotes, seeds, account, say
        self._open: dict[str, _Open] = {}
        self._judge = _Judge(say)

    def run(self, engine: Engine, works: Sequence[tuple[Variant, str, Work]]) -> None:
        self._engine = engine
        for variant, name, work in works:
            self._open[work.key] = _Open(variant, name, work)
            self._show(work.key, "waits for a machine")
        self._say(f"{len(works)} variants of {len(self._seeds)} seeds each to {engine.name}")
        for one in list(self._open.values()):
            engine.submit(one.work)
        while self._open:
            for event in engine.events():
                if event.key in self._open:  # not of a machine that was believed dead, whose variant is back
                    self._hear(event)

    def forget(self) -> None:
        """Nobody waits any more for what is still open."""
        for one in self._open.values():
            done.record_sent(one.variant, self._seeds, "")

    def _hear(self, event: Event) -> None:
        one = self._open[event.key]
        if event.kind == "started":
            self._show(event.key, f"runs on {event.host}, try {one.tries} of {TRIES}")
        elif event.result is None:
            self._again(one, event.why, count=event.began)
        elif event.result.problem:
            self._again(one, f"{event.result.host}: {event.result.problem}")
        else:
            self._bring(one, event.result)

    def _bring(self, one: _Open, result: Result) -> None:
        try:
            made = self._remotes.fetch(one.variant, self._seeds, one.name, result.commit)
        except LabError as error:
            self._again(one, str(error))
            return
        for note in result.notes:
            self._say(f"warning: {one.variant.name}, {result.host}: {note}")
        note = self._judge.strange(one.variant, result)
        if note:
            self._account.strange[one.variant.name] = note
        done.record(one.variant, self._seeds, made.model_copy(update={"note": note}))
        self._account.ran.append(one.variant.name)
        self._close(one)
        self._say(f"{one.variant.name} is back from {result.host}{', where another was faster' * result.again}")

    def _again(self, one: _Open, why: str, *, count: bool = True) -> None:
        """It goes to the queue once more, or is given up."""
        if not count:
            self._say(f"{one.variant.name} had not begun when {why}; it is sent again")
        elif one.tries < TRIES:
            one.tries += 1
            one.problems.append(why)
            self._say(f"{one.variant.name} failed and is tried again ({one.tries} of {TRIES}): {why}")
        else:
            one.problems.append(why)
            said = "; ".join(dict.fromkeys(one.problems))
            job = Job(one.variant, self._seeds, one.name, Path(), problems={f"tried {TRIES} times": said})
            self._account.fail(job, self._say)
            self._close(one)
            return
        self._show(one.work.key, f"waits for a machine, try {one.tries} of {TRIES}")
        self._engine.submit(one.work)

    def _show(self, key: str, state: str) -> None:
        one = self._open[key]
        done.record_sent(one.variant, self._seeds, f"{self._engine.name}: {state}")

    def _close(self, one: _Open) -> None:
        done.record_sent(one.variant, self._seeds, "")
        del self._open[one.work.key]


class _Judge:
    """Says which machines compute otherwise than this one, or have other versions; once of each kind of difference."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._here: dict[str, dict[str, str]] = {}
        self._seen: dict[tuple[str, str], dict[str, str]] = {}  # by numerics and code: a host of each digest
        self._told: set[tuple[str, ...]] = set()

    def strange(self, variant: Variant, result: Result) -> str:
        """What is strange about a result: it is kept, and named so."""
        if not result.versions and not result.spot:
            return ""
        found = [*self._versions(result), *self._digest(variant, result)]
        return "; ".join(found)

    def _versions(self, result: Result) -> list[str]:
        ours = versions()
        differing = {name: found for name, found in result.versions.items() if found != ours.get(name)}
        if not differing:
            return []
        said = ", ".join(f"{name} {found} (here {ours.get(name)})" for name, found in differing.items())
        self._tell(f"{result.host} has other versions: {said}; its results are kept and named so", result.host, said)
        return [f"made on {result.host} with {said}"]

    def _digest(self, variant: Variant, result: Result) -> list[str]:
        digest, mode = result.spot.get("digest", ""), variant.params.numerics
        if not digest:
            if not result.again:
                self._tell(f"{result.host}: no spot check of its arithmetic could be made", result.host, "none")
            return []
        others = self._seen.setdefault((mode, variant.commit), {})
        if not others and not variant.commit and (ours := self._ours(mode)):
            others[ours] = "this machine"
        differing = {other: who for other, who in others.items() if other != digest}
        others.setdefault(digest, result.host)
        if not differing:
            return []
        who = f"{result.host} ({result.spot.get('processor')}, {result.spot.get('kernels')})"
        said = ", ".join(f"{other} on {host}" for other, host in differing.items())
        self._tell(
            f"{who} computes otherwise with numerics {mode}: digest {digest}, but {said}; its results are kept "
            "and named so",
            result.host,
            digest,
            said,
        )
        return [f"made on {who}, which computes otherwise ({digest}, but {said})"]

    def _ours(self, mode: str) -> str:
        """The digest of this machine, by a process of its own; ''."""
        if mode not in self._here:
            made = subprocess.run(
                [sys.executable, "-m", "stages.studies.spot", mode],
                env=other_code.environment(),
                capture_output=True,
                check=False,
            )
            try:
                self._here[mode] = json.loads(made.stdout)
            except ValueError:
                self._say("warning: no spot check could be made here, machines are compared among themselves")
                self._here[mode] = {}
        return self._here[mode].get("digest", "")

    def _tell(self, line: str, *about: str) -> None:
        if about not in self._told:
            self._told.add(about)
            self._say(f"warning: {line}")

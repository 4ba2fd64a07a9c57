"""Executions made of results alone, where no journal is at hand: a fresh clone, a restored cache, an old experiment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages import files, paths
from stages.errors import LabError
from stages.execution import Execution, Journal
from stages.params import parse_params, read_params_file
from stages.tracking import outbox
from stages.tracking.sources import Revision
from stages.tracking.store import waiting_lock

Entries = list[dict[str, Any]]


def restored_execution(folder: Path, fingerprint: str, revision: Revision | None = None) -> Execution:
    """The newest execution of these results; made if there is none here, with a journal from their history.

    Of several replicas each gets an execution, as it does in training. The journals are written once, so every replay
    sends the same times: the start, and a millisecond an update.

    Raises:
        ArtifactError: the history is missing or damaged.
    """
    known = outbox.with_fingerprint(fingerprint)
    if known:
        return known[-1]
    params = _params(folder)
    journal, of_replicas = _journals(folder)
    execution = Execution.create("restored", params)
    started = execution.record.started
    try:
        for i, (seed, entries) in enumerate(of_replicas.items(), start=1):
            replica = Execution.create("restored", params | {"seed": seed}, started=started + i, parent=execution.id)
            execution.add_replica(replica)
            _fill(replica, entries, started, revision)
        _fill(execution, journal, started, revision)
        outbox.set_fingerprint(execution, fingerprint, folder)
    except BaseException:
        remove(execution)
        raise
    return execution


@contextmanager
def restoring() -> Iterator[None]:
    """Held between looking whether results are known and making an execution of them."""
    with waiting_lock("restore"):
        yield


def is_half_made(execution: Execution) -> bool:
    """A restored execution whose making was cut short: nothing in it is of use."""
    record = execution.record
    if record.parent:
        parent = Execution.find(record.parent)
        return record.kind == "restored" and (parent is None or is_half_made(parent))
    return record.kind == "restored" and outbox.fingerprint_of(execution) is None


def remove(execution: Execution) -> None:
    """Forget a restored execution, with its replicas."""
    for replica in execution.replicas():
        shutil.rmtree(replica.folder, ignore_errors=True)
    shutil.rmtree(execution.folder, ignore_errors=True)


class _Collector(Journal):
    """A journal in memory, with times relative to the start: a millisecond an update."""

    def __init__(self) -> None:
        self.entries: Entries = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.entries.append({"s": step, "t": step, "m": dict(metrics)})


def _journals(folder: Path) -> tuple[Entries, dict[int, Entries]]:
    """What training would have journalled for the history in `folder`: of the whole, and of each replica by seed."""
    file = folder / paths.REPLICAS
    replicas = {int(one["seed"]): one for one in files.read_json(file)} if file.is_file() else {}
    if len(replicas) < 2:
        history, validation = (files.read_json(folder / path) for path in (paths.HISTORY, paths.VALIDATION))
        (found,) = replicas.values() or [{}]
        return [*_entries(history, validation, found), {"event": "trained", "t": len(history)}], {}
    own = {seed: folder / paths.MODEL / "replicas" / str(seed) for seed in replicas}
    histories = {seed: files.read_json(one / paths.HISTORY.name) for seed, one in own.items()}
    updates = max(map(len, histories.values()))
    journals = {
        seed: _entries(histories[seed], files.read_json(own[seed] / paths.VALIDATION.name), replicas[seed], updates)
        for seed in replicas
    }
    return [{"event": "trained", "t": updates}], journals


def _entries(history: Entries, validation: Entries, measured: dict[str, Any], updates: int = 0) -> Entries:
    """The journal of one run, from its records and what reports/replicas.json says of it."""
    from stages.training.records import Update, Validation  # imports torch
    from stages.training.series import JournalSeries

    collector = _Collector()
    series = JournalSeries(collector, max(updates, len(history)))
    records: list[Update | Validation] = [Update(**one) for one in history] + [Validation(**one) for one in validation]
    for record in sorted(records, key=lambda one: one.step):  # stable: an update before its validation
        series.add(record)
    if (step := measured.get("diverged_at")) is not None:
        collector.entries.append({"event": "diverged", "t": len(history), "message": f"diverged at update {step}"})
    return collector.entries


def _fill(execution: Execution, entries: Entries, started: int, revision: Revision | None) -> None:
    """Write journal and end of a restored execution; its record says what a revision knows of it."""
    if revision is not None:
        about = {"experiment": revision.experiment, "commit": revision.baseline, "dirty": "unknown"}
        record = execution.record.model_copy(update=about)
        files.write_text(execution.folder / "execution.json", record.model_dump_json(indent=1) + "\n")
    end = {"event": "finished", "t": max((entry["t"] for entry in entries), default=0) + 1}
    lines = [json.dumps({**entry, "t": started + entry["t"]}, ensure_ascii=False) for entry in [*entries, end]]
    files.write_text(execution.journal_path, "".join(f"{line}\n" for line in lines))


def _params(folder: Path) -> dict[str, Any]:
    """The parameters of results; those of another version of the pipeline are taken as they are."""
    raw = read_params_file(folder / paths.PARAMS)
    try:
        return parse_params(raw).model_dump()
    except LabError:
        return {"seed": 0, **raw}

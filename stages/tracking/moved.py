"""The store of a project that was moved, renamed or copied: MLflow keeps absolute addresses of artifacts.

Without mending, old runs would lose their pictures and new ones would be written to the former folder.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from stages import paths
from stages.errors import TrackingError
from stages.tracking.store import EXPERIMENT, artifact_root, database_file, probe, tracking_uri, waiting_lock

Fault = tuple[str, Callable[[], object] | None]  # what is wrong, and what mends it if anything does


@dataclass(frozen=True)
class Address:
    """Where the store says that some artifacts are, and where they should be.

    Attributes:
        table: of the database.
        column: with the address.
        key: column with the id.
        identity: of the experiment, run or model.
        before: the address.
        now: what it should be.
    """

    table: str
    column: str
    key: str
    identity: str
    before: str
    now: str

    @property
    def lies_elsewhere(self) -> bool:
        """The artifacts did not come along: they are still where the address says, and not here."""
        return self.table != "experiments" and not _folder(self.now).is_dir() and _folder(self.before).is_dir()


def wrong_addresses(file: Path) -> list[Address]:
    """Addresses that are not those of this project's own folder; none of another store than its own."""
    root = artifact_root()
    if file != paths.main_root() / "mlflow.db" or not root.is_dir():
        return []
    with closing(sqlite3.connect(file, timeout=5)) as database:
        found, locations = [], {}
        rows = database.execute("SELECT experiment_id, name, artifact_location FROM experiments").fetchall()
        former = next((str(place) for _, name, place in rows if name == EXPERIMENT), "")
        if not (former.startswith("file:") and former.endswith(f"/{root.name}")):
            former = root.as_uri()  # it has artifacts of its own choice
        for identity, _, before in rows:
            inside = before == former or str(before).startswith(f"{former}/")
            now = root.as_uri() + before[len(former) :] if inside else str(before)
            locations[identity] = now
            if now != before:
                found.append(Address("experiments", "artifact_location", "experiment_id", str(identity), before, now))
        for table, column, key, below in (
            ("runs", "artifact_uri", "run_uuid", ""),
            ("logged_models", "artifact_location", "model_id", "models/"),
        ):
            for experiment, location in locations.items():
                query = f"SELECT {key}, {column} FROM {table} WHERE experiment_id = ? AND {column} LIKE 'file:%'"
                for identity, before in database.execute(query, (experiment,)):
                    now = f"{location}/{below}{identity}/artifacts"
                    if before != now and location.startswith("file:"):
                        found.append(Address(table, column, key, identity, before, now))
    return found


def mend_moved(file: Path) -> list[str]:
    """Point the store of a project that was moved or copied at its own artifacts, which came along.

    Returns:
        A note for the user if something was mended.
    """
    if not any(not one.lies_elsewhere for one in wrong_addresses(file)):
        return []
    with waiting_lock("experiment"), closing(sqlite3.connect(file, timeout=5)) as database, database:
        for one in wrong_addresses(file):
            if not one.lies_elsewhere:
                change = f"UPDATE {one.table} SET {one.column} = ? WHERE {one.key} = ? AND {one.column} = ?"
                database.execute(change, (one.now, one.identity, one.before))
    return [f"the project was moved or copied; its runs' artifacts are found in {artifact_root()} again"]


def store_faults() -> list[Fault]:
    """What is wrong with the store of this workspace, if it is a file, and with its `mlflow.db` beside another store.

    Raises:
        TrackingError: one is damaged; it is left as it is.
    """
    files = {database_file(tracking_uri()), paths.main_root() / "mlflow.db"}
    return [fault for file in sorted(filter(None, files)) if file.exists() for fault in _faults_of(file)]


def _faults_of(file: Path) -> list[Fault]:
    probe(f"sqlite:///{file}", timeout=5)
    try:
        with closing(sqlite3.connect(file, timeout=5)) as database:
            said = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if said != "ok":
            raise TrackingError(
                f"{file} is damaged ({said.splitlines()[-1]}); move it away, and `noam sync` fills another"
            )
        wrong = wrong_addresses(file)
    except sqlite3.Error as error:
        raise TrackingError(f"{file}: {error}; move it away, and `noam sync` fills another") from None
    found: list[Fault] = []
    movable = [one for one in wrong if not one.lies_elsewhere]
    if movable:
        counts = ", ".join(
            f"{len(some)} {name}"
            for table, name in (("experiments", "experiments"), ("runs", "runs"), ("logged_models", "models"))
            if (some := [one for one in movable if one.table == table])
        )
        first = movable[0]
        what = f"{file.name}: artifacts of {counts} are looked for elsewhere, such as {first.before}, not {first.now}"
        found.append((what, lambda: mend_moved(file)))
    for one in wrong:
        if one.lies_elsewhere:
            kind = "model" if one.table == "logged_models" else "run"
            what = f"{file.name}: artifacts of {kind} {one.identity} are in {_folder(one.before)}, outside this project"
            found.append((f"{what}; move that folder to {_folder(one.now)}", None))
    return found


def _folder(uri: str) -> Path:
    return Path(unquote(urlparse(uri).path))

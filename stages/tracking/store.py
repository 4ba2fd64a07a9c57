"""The MLflow store: where it is, whether it answers, and how it comes into being.

Everything is in the main workspace, whatever folder a process happens to be in: `mlflow.db` (SQLite) and
`mlartifacts/`. MLFLOW_TRACKING_URI or `noam config store` names another store. MLflow is imported by `connect` only,
after a probe of our own has found the store fit for use and the environment keeps retries short: MLflow by itself tries
for minutes.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from stages import paths
from stages.errors import TrackingError
from stages.tracking import address
from stages.tracking.server_probe import probe_server

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

EXPERIMENT = "noam-lab"
TAG_EXECUTION, TAG_FINGERPRINT, TAG_COMPLETE = "noam.execution", "noam.fingerprint", "noam.complete"

Progress = Callable[[str], None]

_SQLITE = "sqlite:///"
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


def silent(_: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Store:
    """An open store with the experiment of this project.

    Attributes:
        client: talks to the store; nothing else does, so that no run becomes MLflow's "active" one.
        uri: where the store is.
        experiment_id: of the experiment `noam-lab`.
        notes: what the user should know, such as that a deleted experiment was restored.
    """

    client: MlflowClient
    uri: str
    experiment_id: str
    notes: list[str] = field(default_factory=list)

    def runs(self, condition: str = "") -> Iterator[Run]:
        """Runs that satisfy an MLflow filter, deleted ones as well, the oldest first."""
        from mlflow.entities import ViewType

        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id],
                filter_string=condition,
                run_view_type=ViewType.ALL,
                max_results=1000,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            yield from page
            token = page.token
            if not token:
                return

    def tagged(self, key: str, value: str) -> list[Run]:
        """Runs with this value of a tag, the oldest first."""
        return list(self.runs(f"tags.`{key}` = '{value}'"))


def tracking_uri() -> str:
    """MLFLOW_TRACKING_URI, else what `noam config store` says, else `mlflow.db` of the main workspace.

    A relative path to a SQLite database is taken from the main workspace.

    Raises:
        TrackingError: the address is none of a store, or the workspace lies in a folder that no address of a database
            can name.
    """
    given = address.configured()
    if given is None:
        if "?" in str(paths.main_root()):
            raise TrackingError(
                f"{paths.main_root()}: MLflow cannot keep its database in a folder with '?' in its name"
            )
        return f"{_SQLITE}{paths.main_root() / 'mlflow.db'}"
    return absolute(given.uri)


def absolute(uri: str) -> str:
    """The address of a store, with a relative SQLite path taken from the main workspace."""
    file = database_file(uri)
    return f"{_SQLITE}{file}" if file is not None else uri


def database_file(uri: str) -> Path | None:
    """The file of a SQLite store, as an absolute path; None for other stores."""
    if not uri.startswith(_SQLITE):
        return None
    return paths.main_root() / uri.removeprefix(_SQLITE).partition("?")[0]


def artifact_root() -> Path:
    """Where the artifacts of a store in a database lie; a server keeps them in a place of its own."""
    return paths.main_root() / "mlartifacts"


def prepare_environment(timeout: float) -> None:
    """Short retries and no chatter, to be set before MLflow is imported; what the user has set stays.

    Args:
        timeout: seconds that one request may take.
    """
    for key, value in {**_QUIET, "MLFLOW_HTTP_REQUEST_TIMEOUT": str(round(timeout))}.items():
        os.environ.setdefault(key, value)
    for name in ("mlflow", "alembic", "sqlalchemy", "urllib3"):
        warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")
        logging.getLogger(name).setLevel(logging.ERROR)


def probe(uri: str, timeout: float) -> None:
    """Find out in seconds whether a store can be used.

    Raises:
        TrackingError: it refuses, does not answer in time, is damaged or may not be written to.
    """
    file = database_file(uri)
    if file is not None:
        _probe_database(file, timeout)
    elif uri.startswith(("http://", "https://")):
        probe_server(uri, EXPERIMENT, timeout)


def connect(uri: str = "", *, timeout: float = 5, progress: Progress = silent) -> Store:
    """Open a store, which comes into being if need be.

    Args:
        uri: of another store than that of this project.
        timeout: seconds that one request may take.
        progress: is told of every step.

    Raises:
        TrackingError: MLflow is not installed, or the store cannot be used.
    """
    ours = not uri
    uri = tracking_uri() if ours else absolute(uri)
    probe(uri, timeout)
    progress("probed")
    prepare_environment(timeout)
    with tracking_errors(uri):
        import mlflow

        from stages.tracking.moved import mend_moved

        prepare_environment(timeout)  # its import sets the levels of its loggers
        progress("imported")
        file = database_file(uri)
        if file is not None:
            ensure_database(file, progress)
        if ours:  # MLflow keeps it in the environment
            mlflow.set_tracking_uri(uri)
        client = mlflow.MlflowClient(tracking_uri=uri)
        notes = mend_moved(file) if file is not None else []
        artifacts = artifact_root() if ours or file is None else file.parent / artifact_root().name
        experiment_id = _experiment(client, None if uri.startswith("http") else artifacts.as_uri(), notes)
    progress("connected")
    return Store(client, uri, experiment_id, notes)


@contextmanager
def tracking_errors(uri: str) -> Iterator[None]:
    """Whatever goes wrong inside is a `TrackingError` of one line."""
    try:
        yield
    except ImportError as error:
        raise TrackingError(f"MLflow cannot be imported ({_first_line(error)})") from None
    except Exception as error:
        if isinstance(error, TrackingError) or not _from_store(error):
            raise
        raise TrackingError(f"{uri}: {_first_line(error)}") from error


def ensure_database(file: Path, progress: Progress = silent) -> None:
    """Create MLflow's tables, once for all processes that meet here.

    The database is made beside its place and renamed, so that no process sees it half made and a kill leaves nothing
    broken. Write-ahead logging lets the UI read while runs write, and triples the throughput.
    """
    if _has_tables(file):
        return
    with waiting_lock("database", progress):
        if _has_tables(file):
            return
        progress("creating the database")
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
        beside.unlink(missing_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            made = SqlAlchemyStore(f"{_SQLITE}{beside}", artifact_root().as_uri())  # type: ignore[no-untyped-call]
            made.engine.dispose()
            with closing(sqlite3.connect(beside)) as database:
                database.execute("PRAGMA journal_mode=WAL")
            if not _has_tables(file):  # a server started by hand may have been faster
                beside.replace(file)
        finally:
            for rest in file.parent.glob(f"{beside.name}*"):
                rest.unlink(missing_ok=True)


@contextmanager
def waiting_lock(name: str, progress: Progress = silent) -> Iterator[None]:
    """A lock shared by all processes of the main workspace; waiting for a living holder counts as progress."""
    lock = FileLock(paths.run_state() / f"{name}.lock")
    paths.run_state().mkdir(parents=True, exist_ok=True)
    with waiting_for(lock, progress):
        yield


@contextmanager
def waiting_for(lock: FileLock, progress: Progress, patience: float = 60) -> Iterator[None]:
    """Hold `lock`; the one who has it is given `patience` seconds.

    Raises:
        TrackingError: it was not set free in that time.
    """
    from filelock import Timeout

    for _ in range(max(1, round(patience))):
        try:
            lock.acquire(timeout=1)
            break
        except Timeout:
            progress("waiting for a lock")
    else:
        raise TrackingError(f"another process holds {lock.lock_file} for more than {patience:.0f} s")
    try:
        yield
    finally:
        lock.release()


def _experiment(client: MlflowClient, artifacts: str | None, notes: list[str]) -> str:
    """The id of the experiment; created, or restored if it was deleted in the UI."""
    with waiting_lock("experiment"):
        found = client.get_experiment_by_name(EXPERIMENT)
        if found is None:
            try:
                created: str = client.create_experiment(EXPERIMENT, artifact_location=artifacts)
            except Exception:  # another machine may have been faster: our lock is of this one
                found = client.get_experiment_by_name(EXPERIMENT)
                if found is None:
                    raise
            else:
                return created
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
            notes.append(f"the experiment {EXPERIMENT} had been deleted; it was restored with its runs")
        return str(found.experiment_id)


def _has_tables(file: Path) -> bool:
    """Somebody has made MLflow's tables; a file without any content counts as none."""
    if not file.is_file() or not file.stat().st_size:
        return False
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=5)) as database:
        return bool(database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'").fetchone()[0])


def _probe_database(file: Path, timeout: float) -> None:
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            (file.parent / f".{file.name}.probe.{os.getpid()}.tmp").touch()
            (file.parent / f".{file.name}.probe.{os.getpid()}.tmp").unlink()
            return
        with closing(sqlite3.connect(file, timeout=timeout, isolation_level=None)) as database:
            if not _has_tables(file):
                tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if tables:
                    raise TrackingError(f"{file} is not a database of MLflow; move it away")
                return
            with suppress(sqlite3.OperationalError):  # somebody reads: another time
                database.execute("PRAGMA journal_mode=WAL")
            database.execute("BEGIN IMMEDIATE")
            version = database.execute("PRAGMA user_version").fetchone()[0]
            database.execute(f"PRAGMA user_version = {version}")  # a write, which a read-only file refuses
            database.execute("ROLLBACK")
    except (OSError, sqlite3.Error) as error:
        broken = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        hint = "; move it away, and a new one will be made" if broken else ""
        raise TrackingError(f"{file}: {_first_line(error)}{hint}") from None


def _from_store(error: Exception) -> bool:
    """The store or the way to it failed, rather than our own code."""
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return bool(modules & {"mlflow", "sqlalchemy", "sqlite3", "alembic", "requests", "urllib3"}) or isinstance(
        error, OSError
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    of_database = re.search(r"\(sqlite3\.\w+\) .+", text)  # SQLAlchemy says much before it
    line = of_database[0] if of_database else text.splitlines()[0]
    return line if len(line) <= 200 else line[:199] + "…"

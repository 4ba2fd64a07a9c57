"""The store comes into being once, where it belongs, and is found out quickly when it is of no use."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.errors import TrackingError
from stages.tracking.store import EXPERIMENT, Store, connect, database_file, ensure_database, probe, tracking_uri
from tests.tracking.lab import free_port

FOUR_RUNS = """
import sys
from stages.tracking.store import connect
store = connect()
store.client.create_run(store.experiment_id, run_name=sys.argv[1])
"""


def test_four_processes_meet_at_a_fresh_store(workspace: Path) -> None:
    command = [sys.executable, "-c", FOUR_RUNS]
    workers = [subprocess.Popen([*command, f"run {i}"], stderr=subprocess.PIPE, text=True) for i in range(4)]
    assert [(worker.communicate(timeout=100)[1], worker.returncode) for worker in workers] == [("", 0)] * 4

    store = connect()
    assert sorted(run.info.run_name for run in store.runs()) == ["run 0", "run 1", "run 2", "run 3"]
    experiments = [one.name for one in store.client.search_experiments()]
    assert sorted(experiments) == ["Default", EXPERIMENT]
    with sqlite3.connect(workspace / "mlflow.db") as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_everything_lies_in_the_main_workspace(
    workspace: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = workspace / ".dvc/tmp/exps/standalone/tmpx"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    (workspace / "mlflow.db").write_bytes(empty_database.read_bytes())
    store = connect()
    run = store.client.create_run(store.experiment_id)
    store.client.log_text(run.info.run_id, "ñ", "a note.txt")

    assert tracking_uri() == f"sqlite:///{workspace}/mlflow.db"
    assert (workspace / "mlartifacts" / run.info.run_id / "artifacts/a note.txt").read_text(encoding="utf-8") == "ñ"
    assert not list(copy.iterdir())
    assert not (workspace / "mlruns").exists()


def test_a_moved_project_finds_its_artifacts_and_writes_to_its_own_folder(
    store: Store, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.client.create_run(store.experiment_id)
    store.client.log_text(run.info.run_id, "ñ", "note.txt")
    moved = workspace.with_name("moved 100% away")
    monkeypatch.chdir(workspace.parent)
    workspace.rename(moved)
    monkeypatch.chdir(moved)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow leaves the address of the first store there

    again = connect()
    assert any("moved or copied" in note for note in again.notes)
    assert connect().notes == []
    old = again.client.get_run(run.info.run_id)
    assert old.info.artifact_uri == (moved / "mlartifacts" / run.info.run_id / "artifacts").as_uri()
    assert [one.path for one in again.client.list_artifacts(run.info.run_id)] == ["note.txt"]
    new = again.client.create_run(again.experiment_id)
    again.client.log_text(new.info.run_id, "ñ", "note.txt")
    assert not workspace.exists()


def test_a_relative_database_is_one_of_the_main_workspace(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other/runs.db")
    (workspace / "data/model").mkdir(exist_ok=True)
    monkeypatch.setenv("DVC_ROOT", str(workspace))
    monkeypatch.chdir(workspace / "data/model")
    assert database_file(tracking_uri()) == workspace / "other/runs.db"


def test_a_deleted_experiment_is_restored_with_its_runs(store: Store) -> None:
    run = store.client.create_run(store.experiment_id)
    store.client.delete_experiment(store.experiment_id)

    again = connect()
    assert again.experiment_id == store.experiment_id
    assert [note for note in again.notes if "had been deleted" in note]
    assert again.client.get_run(run.info.run_id).info.lifecycle_stage == "active"


def test_a_file_left_empty_by_a_crash_becomes_a_database(workspace: Path) -> None:
    (workspace / "mlflow.db").touch()
    ensure_database(workspace / "mlflow.db")
    assert connect().client.search_experiments()
    assert [path.name for path in workspace.glob(".mlflow.db*")] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no database at all, but long enough to look at " * 40, "not a database"),
        (None, "not a database of MLflow"),
    ],
)
def test_a_broken_database_is_named(workspace: Path, content: bytes | None, message: str) -> None:
    file = workspace / "mlflow.db"
    if content is None:
        with sqlite3.connect(file) as database:
            database.execute("CREATE TABLE something_else (x)")
        database.close()
    else:
        file.write_bytes(content)
    with pytest.raises(TrackingError, match=message) as raised:
        probe(tracking_uri(), timeout=5)
    assert str(file) in str(raised.value)
    assert "move it away" in str(raised.value)


def test_a_server_that_is_away_is_found_out_at_once(workspace: Path, hanging_server: str) -> None:
    started = time.monotonic()
    with pytest.raises(TrackingError, match="refused"):
        probe(f"http://127.0.0.1:{free_port()}", timeout=5)
    assert time.monotonic() - started < 1
    with pytest.raises(TrackingError, match="does not answer"):
        probe(hanging_server, timeout=5)
    assert time.monotonic() - started < 5


def test_a_folder_that_no_address_can_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "what?").mkdir()
    monkeypatch.chdir(tmp_path / "what?")
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(TrackingError, match="with '\\?' in its name"):
        tracking_uri()

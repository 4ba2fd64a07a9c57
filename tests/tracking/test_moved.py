"""The store of a project that was moved: addresses that are wrong are found, mended, or named."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from stages.errors import TrackingError
from stages.tracking.moved import store_faults
from stages.tracking.store import Store, connect


@pytest.fixture
def moved(store: Store, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str, str]:
    """The project in its new folder, and the ids of a run with an artifact and of a model."""
    run = store.client.create_run(store.experiment_id).info.run_id
    store.client.log_text(run, "ñ", "note.txt")
    model = store.client.create_logged_model(store.experiment_id, name="m", source_run_id=run).model_id
    new = workspace.with_name("moved 100% away")
    monkeypatch.chdir(workspace.parent)
    workspace.rename(new)
    monkeypatch.chdir(new)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return new, run, model


def doctor(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stages.cli", "doctor", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_doctor_says_and_mends(moved: tuple[Path, str, str]) -> None:
    root, run, model = moved
    said = doctor()
    assert said.returncode == 1
    assert (
        "to be mended: mlflow.db: artifacts of 1 experiments, 1 runs, 1 models are looked for elsewhere" in said.stdout
    )
    assert doctor().stdout == said.stdout
    mended = doctor("--fix")
    assert (mended.returncode, mended.stdout.count("mended: "), mended.stderr) == (0, 1, "")
    assert doctor().stdout == "nothing was left behind\n"
    store = connect()
    assert store.notes == []
    assert store.client.get_run(run).info.artifact_uri == (root / "mlartifacts" / run / "artifacts").as_uri()
    assert [one.path for one in store.client.list_artifacts(run)] == ["note.txt"]
    location = store.client.get_logged_model(model).artifact_location
    assert location == (root / "mlartifacts/models" / model / "artifacts").as_uri()


def test_single_addresses_that_point_elsewhere(moved: tuple[Path, str, str], tmp_path: Path) -> None:
    """A run of another folder that is gone is mended; one whose artifacts are still there is named."""
    root, run, _ = moved
    store = connect()
    kept = store.client.create_run(store.experiment_id).info.run_id
    (tmp_path / "else where").mkdir()
    with sqlite3.connect(root / "mlflow.db") as database:
        for identity, place in ((run, tmp_path / "gone"), (kept, tmp_path / "else where")):
            database.execute("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", (place.as_uri(), identity))
    ((what, mend), (named, nothing)) = store_faults()
    assert "artifacts of 1 runs are looked for elsewhere" in what
    assert nothing is None
    assert f"run {kept} are in {tmp_path}/else where, outside this project" in named
    assert mend is not None
    mend()
    assert [one.path for one in connect().client.list_artifacts(run)] == ["note.txt"]
    assert [what for what, _ in store_faults()] == [named]


def test_a_damaged_database_is_named_and_not_touched(moved: tuple[Path, str, str]) -> None:
    root, _, _ = moved
    with sqlite3.connect(root / "mlflow.db") as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray((root / "mlflow.db").read_bytes())
    content[-4096 * 8 :] = b"\xff" * 4096 * 8
    (root / "mlflow.db").write_bytes(content)
    with pytest.raises(TrackingError, match=r"damaged|malformed"):
        store_faults()
    said = doctor("--fix")
    assert said.returncode == 1
    assert said.stdout.startswith(f"damaged: {root}/mlflow.db")
    assert (root / "mlflow.db").read_bytes() == bytes(content)


def test_the_database_is_looked_at_while_another_store_is_in_use(
    moved: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert len(store_faults()) == 1
    assert doctor("--fix").stdout.count("mended: ") == 1
    assert store_faults() == []

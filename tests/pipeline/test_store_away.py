"""MLflow away: every output is complete, the exit code is 0, and `noam sync` brings it all later."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from tests.pipeline.project import Project

pytestmark = pytest.mark.pipeline


def warnings_of(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "warning:" in line and line.startswith("track:")]


def test_refused_connection_then_sync(fresh: Callable[..., Project]) -> None:
    project = fresh(epochs=3)
    done = project.run("dvc", "repro", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert len(warnings_of(done.stderr)) == 1
    assert "noam sync" in done.stderr
    assert project.outputs("track").keys() == {"reports/tracked.json"}
    assert project.runs() == []

    project.run("noam", "sync")
    project.run("noam", "sync")
    (run,) = project.runs()
    points = project.client().get_metric_history(run.info.run_id, "train/loss")
    assert [point.step for point in points] == list(range(1, 28))
    assert "figures" in {artifact.path for artifact in project.client().list_artifacts(run.info.run_id)}


@pytest.mark.slow  # tests/tracking has the same with less around it
def test_hanging_server_costs_less_than_15_seconds(project: Project) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        done = project.run("dvc", "repro", "-f", "-s", "track", MLFLOW_TRACKING_URI=address)
        hanging = time.monotonic() - began
    began = time.monotonic()
    project.run("dvc", "repro", "-f", "-s", "track")
    normal = time.monotonic() - began
    assert len(warnings_of(done.stderr)) == 1
    assert hanging - normal < 15


def test_deleted_database_is_filled_again(project: Project) -> None:
    project.run("dvc", "exp", "run", "-S", "warmup=77")
    project.run("git", "checkout", "-q", "--", ".")
    project.run("dvc", "checkout")
    known = {run.data.tags["noam.fingerprint"] for run in project.runs() if run.info.status == "FINISHED"}
    assert len(known) == 2
    for path in project.root.glob("mlflow.db*"):
        path.unlink()
    shutil.rmtree(project.root / "mlartifacts")
    project.run("noam", "sync")
    with closing(sqlite3.connect(project.root / "mlflow.db")) as database:  # MLflow itself still holds the old file
        tags = database.execute("SELECT value FROM tags WHERE key = 'noam.fingerprint'").fetchall()
        warmups = database.execute("SELECT value FROM params WHERE key = 'warmup'").fetchall()
    assert known <= {value for (value,) in tags}
    assert {value for (value,) in warmups} >= {"40000", "77"}

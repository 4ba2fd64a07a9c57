"""Runs copied to a server over HTTP: killed at any point, and by two people at once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.tracking.copying import Account, copy_all, copy_runs
from stages.tracking.copying_names import TAG_CLAIM
from stages.tracking.server import HOST, free_port, wait_for_health
from stages.tracking.store import Store, connect
from tests.tracking.test_copying import contents, fill, fresh_database

ROUNDS = 3
COPY = "import sys; from stages.tracking.copying import copy_all; sys.exit(copy_all(to=sys.argv[1]))"
KILLED_AT = """
import os, signal, sys
from stages.tracking.copying import Account, copy_runs
from stages.tracking.store import connect
left = int(sys.argv[2])
def progress(what):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
here = connect()
copy_runs(here, connect(sys.argv[1]), Account(), progress)
"""


class Server:
    """MLflow's server on a SQLite file, whose runs can be taken away."""

    def __init__(self, folder: Path, empty: Path) -> None:
        self.port, self.folder, self.empty = free_port(5600), folder, empty
        self.uri = f"http://{HOST}:{self.port}"
        folder.mkdir(parents=True)
        shutil.copy(empty, folder / "runs.db")
        command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(self.port), "--workers", "1"]
        command += [
            "--backend-store-uri",
            f"sqlite:///{folder}/runs.db",
            "--artifacts-destination",
            str(folder / "artifacts"),
        ]
        lean = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, env={**os.environ, **lean}, start_new_session=True
            )
        wait_for_health(self.process, self.port, folder / "log")

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def clear(self) -> Store:
        """Take all runs out of the experiment, which gets another name; the next one is new."""
        store = connect(self.uri)
        store.client.rename_experiment(store.experiment_id, f"round {time.time_ns()}")
        return connect(self.uri)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server") / "team", empty_database)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, results: Path, empty_database: Path) -> Iterator[Path]:
    """A workspace with runs of all kinds in its store, made once."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("MLFLOW_", "DVC_")):
                patch.delenv(name)
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("NOAM_LIVE", "off")
        folder = tmp_path_factory.mktemp("person") / "más ruido"
        shutil.copytree(results, folder)
        patch.chdir(folder)
        shutil.copy(empty_database, folder / "mlflow.db")
        fill(connect(), folder)
        yield folder
        os.environ.pop("MLFLOW_TRACKING_URI", None)


@pytest.fixture
def here(filled: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(filled)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return connect()


def test_to_a_server_and_back_into_an_empty_store(
    here: Store,
    server: Server,
    empty_database: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = contents(here)
    there = server.clear()
    assert copy_all(to=server.uri) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "runs: 6 copied, 0 already there"
    assert contents(there) == before
    assert copy_all(to=server.uri) == copy_all(source=server.uri) == 0
    assert capsys.readouterr().out == "runs: 0 copied, 6 already there\n" * 2

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    fresh_database(tmp_path / "mlflow.db", empty_database)
    assert copy_all(source=server.uri) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "runs: 6 copied, 0 already there"
    assert contents(connect()) == before
    assert copy_all(to=server.uri) == 0
    assert capsys.readouterr().out == "runs: 0 copied, 6 already there\n"


def test_killed_at_any_point_and_repeated(here: Store, server: Server) -> None:
    before = contents(here)
    there = server.clear()
    draw = random.Random(5)
    kills = 0
    for after in [2, *(draw.randint(4, 25) for _ in range(3))]:
        killed = subprocess.run([sys.executable, "-c", KILLED_AT, server.uri, str(after)], check=False)
        kills += killed.returncode == -9
    assert kills >= 3
    copy_runs(here, there, Account())
    assert contents(there) == before


def test_two_people_with_the_same_runs_lose_and_double_nothing(
    here: Store, server: Server, filled: Path, tmp_path: Path
) -> None:
    """Each has a store of its own with the same runs; they begin at the same time."""
    before = contents(here)
    second = tmp_path / "second person"
    shutil.copytree(filled, second)
    met = 0
    for _ in range(ROUNDS):
        there = server.clear()
        both = [
            subprocess.Popen(
                [sys.executable, "-c", COPY, server.uri],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for folder in (filled, second)
        ]
        said = [one.communicate(timeout=200)[0] for one in both]
        assert [one.returncode for one in both] == [0, 0], said
        assert contents(there) == before
        assert len(there.client.search_logged_models([there.experiment_id])) == 1
        claims = {run.data.tags[TAG_CLAIM].partition("-")[2] for run in there.runs()}
        met += len(claims) == 2 or any(run.info.lifecycle_stage == "deleted" for run in there.runs())
        account = Account()
        copy_runs(here, there, account)
        assert account.lines() == ["runs: 0 copied, 6 already there"]
    assert met > 0, "the two never met"

"""Workspaces, executions and stores for the tests of tracking."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from stages.execution import Execution
from stages.tracking.store import Store, connect, ensure_database
from tests.tracking.lab import REPOSITORY, train_execution, write_results

NOISE = (  # of MLflow's own code
    "ignore:The ``noload`` loader strategy is deprecated",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            for pattern in NOISE:
                item.add_marker(pytest.mark.filterwarnings(pattern))


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the stages before `track` make, once."""
    folder = tmp_path_factory.mktemp("results")
    shutil.copytree(REPOSITORY / "stages", folder / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "data").mkdir()
    shutil.copytree(REPOSITORY / "data/raw", folder / "data/raw")
    params = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    params |= {"epochs": 6, "eval_every": 2, "warmup": 4000, "d_model": 16, "n_heads": 2, "hidden": 8}
    (folder / "params.yaml").write_text(yaml.safe_dump(params, allow_unicode=True, sort_keys=False), encoding="utf-8")
    write_results(folder, seed=0)
    return folder


@pytest.fixture
def workspace(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a workspace of its own, in a path with spaces and accents, with no store yet."""
    folder = tmp_path / "más ruido, carpeta ñ"
    shutil.copytree(results, folder)
    monkeypatch.chdir(folder)
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "DVC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("NOAM_LIVE", "off")
    return folder


@pytest.fixture
def execution(workspace: Path) -> Execution:
    """An execution of the workspace, trained and current, whose journal is the one of its history."""
    return train_execution()


@pytest.fixture
def hanging_server() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables without any run, made once: each making takes seconds."""
    file = tmp_path_factory.mktemp("database") / "mlflow.db"
    ensure_database(file)
    return file


@pytest.fixture
def store(workspace: Path, empty_database: Path) -> Store:
    """The store of the workspace, open."""
    shutil.copy(empty_database, workspace / "mlflow.db")
    return connect()

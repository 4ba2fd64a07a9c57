"""Results over DVC's remotes: pushed by one person, pulled by another, and in MLflow without any training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import mlflow
import pytest

from stages import files
from stages.tracking.server import HOST, free_port
from tests.pipeline.project import ROOT, Project, copy_project
from tests.tracking.lab import is_open, wait_until

SMALL = {"epochs": 8, "eval_every": 4, "d_model": 16, "n_heads": 2, "hidden": 16, "snapshots": 0}
ASKED = ("noam", "predict", "el perro", "--json")
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
NO_KEYS = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nowhere",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
}


@dataclass
class Pushed:
    """What a person has made and pushed.

    Attributes:
        project: the workspace.
        origin: the repository of git that it was pushed to.
        reports: bytes of the report page, of the commit and of the experiment.
        predicted: what the model of the commit answers.
    """

    project: Project
    origin: Path
    reports: dict[str, bytes]
    predicted: str


@pytest.fixture(autouse=True)
def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials but those of the tests."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory, s3: str) -> Pushed:
    """A commit and an experiment on top of it, trained once for all remotes.

    The remotes are in the commit already: for an experiment DVC asks the configuration of its own commit.
    """
    folder = tmp_path_factory.mktemp("remotes")
    project = copy_project(folder / "person a", **SMALL)
    project.run("dvc", "remote", "add", "folder", str(folder / "dvc remote"))
    project.run("dvc", "remote", "add", "-d", "s3", "s3://team/noam")
    project.run("dvc", "remote", "modify", "s3", "endpointurl", s3)
    project.run("dvc", "repro")
    project.commit("first run")
    reports = {"": (project.root / "reports/index.html").read_bytes()}
    predicted = project.run(*ASKED).stdout
    project.run("dvc", "exp", "run", "-n", "short-ramp", "-S", "warmup=40")
    reports["short-ramp"] = (project.root / "reports/index.html").read_bytes()
    project.run("git", "checkout", "-q", "--", ".")
    project.run("git", "init", "-q", "--bare", "-b", "main", str(folder / "origin.git"))
    project.run("git", "remote", "add", "origin", str(folder / "origin.git"))
    project.run("git", "push", "-q", "origin", "main")
    return Pushed(project, folder / "origin.git", reports, predicted)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 server with a bucket."""
    port = free_port(5800)
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: is_open(port), 60)
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=f"http://{HOST}:{port}", **keys).create_bucket(Bucket="team")
        yield f"http://{HOST}:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)


@pytest.fixture(params=["folder", "s3"])
def remote(request: pytest.FixtureRequest, pushed: Pushed) -> str:
    """The remote that everything was pushed to just now."""
    name = str(request.param)
    pushed.project.run("dvc", "push", "-r", name, **KEYS)
    pushed.project.run("dvc", "exp", "push", "-f", "-r", name, "origin", "short-ramp", **KEYS)
    return name


def clone(pushed: Pushed, target: Path) -> Project:
    """A second person's workspace, with an empty cache and no store."""
    subprocess.run(["git", "clone", "-q", str(pushed.origin), str(target)], check=True)
    return Project(target)


def test_a_clone_has_everything_without_training(pushed: Pushed, remote: str, tmp_path: Path) -> None:
    there = clone(pushed, tmp_path / "person b")
    there.run("dvc", "pull", "-r", remote, **KEYS)
    there.run("dvc", "exp", "pull", "-r", remote, "origin", "short-ramp", **KEYS)
    assert (there.root / "reports/index.html").read_bytes() == pushed.reports[""]
    status = there.run("dvc", "status").stdout.splitlines()
    changed = [line for line in status if not line.startswith("\t")]
    assert changed == ["track:"]  # whether MLflow has the results is each machine's own business
    started = time.monotonic()
    said = there.run("noam", "sync").stdout
    assert time.monotonic() - started < 100
    assert said.splitlines()[-1] == "runs: 2 brought, 0 already there"
    records = [files.read_json(path) for path in there.root.glob(".runstate/executions/*/execution.json")]
    assert [record["kind"] for record in records] == ["restored"] * 2

    found = {run.data.tags.get("dvc.experiment", ""): run for run in there.runs()}
    theirs = {run.data.tags.get("dvc.experiment", ""): run for run in pushed.project.runs()}
    assert found.keys() == theirs.keys() == {"", "short-ramp"}
    for name, run in found.items():
        same(there.client(), run, pushed.project.client(), theirs[name])
        report = there.client().download_artifacts(run.info.run_id, "report/index.html", str(tmp_path))
        assert Path(report).read_bytes() == pushed.reports[name]
    assert there.run(*ASKED).stdout == pushed.predicted
    assert there.run("noam", "sync").stdout == "runs: 0 brought, 2 already there\n"


def same(
    client: mlflow.MlflowClient, run: mlflow.entities.Run, theirs: mlflow.MlflowClient, other: mlflow.entities.Run
) -> None:
    """Two runs show the same results."""
    assert run.data.params == other.data.params
    assert run.data.metrics == other.data.metrics
    for key in ("train/loss", "eval/train_loss", "optim/lr"):
        curves = [
            [(point.step, point.value) for point in one.get_metric_history(which.info.run_id, key)]
            for one, which in ((client, run), (theirs, other))
        ]
        assert curves[0] == curves[1] != []
    for folder in ("figures", "report"):
        listed = [
            [(one.path, one.file_size) for one in c.list_artifacts(which.info.run_id, folder)]
            for c, which in ((client, run), (theirs, other))
        ]
        assert listed[0] == listed[1] != []
    condition = f"source_run_id = '{run.info.run_id}'"
    (model,) = client.search_logged_models([run.info.experiment_id], condition)
    assert str(model.status) == "READY"


def test_a_remote_without_credentials_or_away_is_named(pushed: Pushed, tmp_path: Path) -> None:
    there = clone(pushed, tmp_path / "person c")
    away = f"http://{HOST}:{free_port(5900)}"
    for reason, keys in (("Unable to locate credentials", NO_KEYS), ("Could not connect to the endpoint URL", KEYS)):
        pulled = there.run("dvc", "pull", check=False, **keys)
        assert pulled.returncode != 0
        assert reason in pulled.stderr
        said = there.run("noam", "sync", **keys).stdout
        assert "its files are neither in the workspace nor in DVC's cache" in said
        assert f"(DVC's remote: {reason}" in said
        there.run("dvc", "remote", "modify", "-q", "--local", "s3", "endpointurl", away)
    assert "Traceback" not in said
    assert there.runs() == []


def test_the_job_of_the_compose_file_makes_the_bucket_once(s3: str) -> None:
    settings = {**os.environ, **KEYS, "MLFLOW_S3_ENDPOINT_URL": s3, "BUCKET": "mlflow"}
    job = [sys.executable, str(ROOT / ".docker/bucket.py")]
    said = [subprocess.run(job, env=settings, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert said == ["created the bucket mlflow\n", ""]

"""A team's server, the real one: PostgreSQL, passwords, a pipeline that sends its run through it, a browser."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest

from stages.tracking import cluster
from tests.pipeline.project import Project, clean_environment, copy_project
from tests.services.browser import CHROMIUM, Browser
from tests.tracking.lab import free_port, is_open, wait_until

pytestmark = pytest.mark.services
ADMINISTRATOR = "a long enough secret"
ANA, BRUNO = ("ana", "four words of ana"), ("bruno", "four words of bruno")


class Team:
    """`noam server` in a folder, under way."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.output = folder.parent / "server.txt"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        """Start it and wait until it says that it is ready."""
        with open(self.output, "wb") as file:
            self.process = subprocess.Popen(
                [*NOAM, "server", "--folder", str(self.folder), "--port", str(self.port)],
                cwd=self.folder.parent,
                env=environment_of_server(**environment),
                stdout=file,
                stderr=file,
            )
        wait_until(lambda: "Ctrl-C" in self.said() or self.process.poll() is not None, 150)
        assert self.process.poll() is None, self.said()

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def family(self) -> list[psutil.Process]:
        """All processes below it."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self) -> int:
        """Ask it to end; gives its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def ask(self, method: str, path: str, who: tuple[str, str], **content: Any) -> tuple[int, Any]:
        """A request of MLflow's interface as a user: the status, and the answer where it is JSON."""
        login = base64.b64encode(":".join(who).encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        body = json.dumps(content).encode() if content else None
        request = urllib.request.Request(f"{self.address}/api/2.0/mlflow/{path}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, None


NOAM = [sys.executable, "-c", "from stages.cli import main; main()"]


def environment_of_server(**more: str) -> dict[str, str]:
    return clean_environment(PYTHONPATH=str(Path(__file__).parents[2]), **more)


def login(who: tuple[str, str]) -> dict[str, str]:
    return {"MLFLOW_TRACKING_USERNAME": who[0], "MLFLOW_TRACKING_PASSWORD": who[1]}


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    """A server with two members. (Not in pytest's folder: as root, PostgreSQL's user may not enter that.)"""
    with tempfile.TemporaryDirectory(prefix="noam team ñ ") as temporary:
        Path(temporary).chmod(0o711)
        server = Team(Path(temporary) / "the server")
        try:
            server.start(NOAM_SERVER_PASSWORD=ADMINISTRATOR)
            for name, password in (ANA, BRUNO):
                status, _ = server.ask(
                    "POST", "users/create", ("admin", ADMINISTRATOR), username=name, password=password
                )
                assert status == 200
            yield server
        finally:
            if server.process is not None and server.process.poll() is None:
                server.stop()


@pytest.fixture(scope="module")
def project(team: Team, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose store is the team's, by `noam config`."""
    copy = copy_project(tmp_path_factory.mktemp("copy") / "my tree", epochs=3, eval_every=3)
    done = copy.run("noam", "config", "store", team.address)
    assert done.stdout == f"store  {team.address}  ({copy.root}/.runstate/config.json)\n"
    assert copy.run("git", "status", "--porcelain").stdout == ""
    return copy


@pytest.fixture
def client(team: Team, monkeypatch: pytest.MonkeyPatch) -> mlflow.MlflowClient:
    """MLflow's client, as Ana."""
    for name, value in login(ANA).items():
        monkeypatch.setenv(name, value)
    return mlflow.MlflowClient(team.address)


def runs_of(client: mlflow.MlflowClient) -> list[mlflow.entities.Run]:
    found = client.get_experiment_by_name("noam-lab")
    return [] if found is None else list(client.search_runs([found.experiment_id]))


def test_it_is_lean_and_keeps_its_secrets(team: Team) -> None:
    family = team.family()
    of_mlflow = [one for one in family if "mlflow" in one.cmdline() or "uvicorn" in one.cmdline()]
    assert len(of_mlflow) == 2
    listening = {(one.laddr.ip, one.laddr.port) for child in family for one in child.net_connections() if not one.raddr}
    assert {ip for ip, _ in listening} == {"127.0.0.1"}
    assert len(listening) == 2  # MLflow and PostgreSQL

    secrets = {"pgpass", "secret-key", "basic_auth.ini"}
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in team.folder.iterdir() if path.is_file()}
    assert {modes[name] for name in secrets} == {0o600}
    assert stat.S_IMODE((team.folder / "postgres").stat().st_mode) == 0o700
    assert "admin-password" not in modes  # it was given
    password = (team.folder / "pgpass").read_text(encoding="ascii").strip().rpartition(":")[2]
    told = [word for child in family for word in child.cmdline()]
    told += [log.read_text(encoding="utf-8") for log in (team.folder / "logs").iterdir()]
    assert not [word for word in told if password in word or ADMINISTRATOR in word]
    if os.geteuid() == 0:
        assert {one.username() for one in family if one.name() == "postgres"} == {"postgres"}
    for name in cluster.HOST, "postgresql+psycopg":
        assert name in (team.folder / "basic_auth.ini").read_text(encoding="utf-8")


def test_a_wrong_password_costs_one_warning_and_nothing_is_lost(
    team: Team, project: Project, client: mlflow.MlflowClient
) -> None:
    wrong = login(("ana", "not her password"))
    done = project.run("dvc", "repro", **wrong)
    (warning,) = [line for line in done.stderr.splitlines() if "warning:" in line and line.startswith("track:")]
    assert f"{team.address} refuses user 'ana'" in warning
    assert "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" in warning
    assert "noam sync" in warning
    assert "not her password" not in done.stdout + done.stderr
    assert runs_of(client) == []

    project.commit("first run")
    nobody = project.run("noam", "sync", check=False, HOME=str(project.root))
    assert nobody.returncode == 1
    assert nobody.stderr.startswith(f"error: {team.address} wants a user and a password; set MLFLOW_TRACKING_USERNAME")
    assert nobody.stderr.count("\n") == 1

    credentials = project.root / ".mlflow/credentials"
    credentials.parent.mkdir()
    credentials.write_text(f"[mlflow]\nmlflow_tracking_username = {ANA[0]}\nmlflow_tracking_password = {ANA[1]}\n")
    brought = project.run("noam", "sync", HOME=str(project.root))
    shutil.rmtree(credentials.parent)
    name, counts = brought.stdout.splitlines()  # and nothing of what MLflow likes to say about its servers
    assert name.startswith("brought warmup=40000 · seed=0")
    assert counts == "runs: 1 brought, 0 already there"

    (run,) = runs_of(client)
    points = client.get_metric_history(run.info.run_id, "train/loss")
    assert [point.step for point in points] == list(range(1, 28))
    assert run.info.artifact_uri.startswith("mlflow-artifacts:/")
    figures = [one.path for one in client.list_artifacts(run.info.run_id, "figures")]
    assert "figures/loss.png" in figures
    fetched = Path(client.download_artifacts(run.info.run_id, "figures/loss.png"))
    assert fetched.read_bytes() == (project.root / "reports/figures/loss.png").read_bytes()
    assert list((team.folder / "artifacts").rglob("loss.png"))
    (output,) = client.get_run(run.info.run_id).outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    assert client.list_logged_model_artifacts(model.model_id)
    assert project.run("noam", "sync", **login(ANA)).stdout.endswith("runs: 0 brought, 1 already there\n")


def test_experiments_elsewhere_and_other_commands_use_the_same_store(
    team: Team, project: Project, client: mlflow.MlflowClient
) -> None:
    before = len(runs_of(client))
    project.run("dvc", "exp", "run", "--temp", "-S", "warmup=77", **login(ANA))
    project.run("noam", "sync", **login(ANA))  # on a busy machine the pipeline may not have waited for the server
    assert len(runs_of(client)) == before + 1
    assert not (project.root / "mlflow.db").exists()

    ui = project.run("noam", "ui", **login(ANA)).stdout
    assert ui.startswith(f"the runs are on the server that {project.root}/.runstate/config.json names\n")
    assert f"{team.address}/#/experiments/" in ui
    compared = json.loads(project.run("noam", "compare", "--store", "--json", **login(ANA)).stdout)
    assert {variant["variant"] for variant in compared["variants"]} == {"warmup=40000", "warmup=77"}


def test_a_member_writes_into_the_runs_of_others_and_deletes_none(team: Team, client: mlflow.MlflowClient) -> None:
    experiment = client.get_experiment_by_name("noam-lab").experiment_id
    of_ana = runs_of(client)[0].info.run_id
    created, answer = team.ask("POST", "runs/create", BRUNO, experiment_id=experiment)
    assert created == 200
    assert answer["run"]["info"]["experiment_id"] == experiment
    assert team.ask("POST", "runs/set-tag", BRUNO, run_id=of_ana, key="seen by", value="bruno")[0] == 200
    assert client.get_run(of_ana).data.tags["seen by"] == "bruno"
    assert team.ask("POST", "runs/delete", BRUNO, run_id=of_ana)[0] == 403
    assert team.ask("POST", "runs/delete", ANA, run_id=answer["run"]["info"]["run_id"])[0] == 200
    assert team.ask("GET", "users/get?username=ana", ("", ""))[0] == 401


def test_a_browser_shows_the_runs(team: Team, project: Project, tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium here to look at the page with")
    curves, pictures, *_ = re.findall(r"http://\S+", project.run("noam", "ui", **login(BRUNO)).stdout)
    keep = Path(os.environ.get("NOAM_SCREENSHOTS", str(tmp_path)))
    with Browser(tmp_path / "profile", *BRUNO) as browser:
        seen = browser.open(curves, "document.querySelectorAll('.js-plotly-plot .bars .point').length >= 2")
        assert {"Group: 77", "Group: 40000"} <= set(seen.splitlines())
        assert browser.asked
        browser.picture(keep / "team-server.png")
        loaded = "[...document.images].filter(one => one.src.includes('get-artifact') && one.naturalWidth > 0)"
        browser.open(pictures, f"{loaded}.length >= 2")
        browser.picture(keep / "team-server-pictures.png")


def test_a_second_server_and_a_busy_port_are_said_at_once(team: Team, tmp_path: Path) -> None:
    def start(folder: Path) -> subprocess.CompletedProcess[str]:
        command = [*NOAM, "server", "--folder", str(folder), "--port", str(team.port)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=environment_of_server()
        )

    began = time.monotonic()
    same, busy = start(team.folder), start(tmp_path / "other")
    assert time.monotonic() - began < 20
    assert (same.returncode, same.stdout) == (1, "")
    assert same.stderr == f"error: {team.folder}: another `noam server` runs in this folder\n"
    assert (busy.returncode, busy.stdout) == (1, "")
    assert busy.stderr == f"error: port {team.port} is busy; choose another with --port\n"


def test_killed_outright_it_mends_itself_and_keeps_the_runs(team: Team, client: mlflow.MlflowClient) -> None:
    before = {run.info.run_id for run in runs_of(client)}
    family = team.family()
    team.process.kill()
    team.process.wait()
    assert [one for one in family if one.is_running()]  # they do not notice
    team.start()  # on the same port; the password is known
    assert "ending what is left" in team.said()
    assert not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert {run.info.run_id for run in runs_of(client)} == before
    assert "the administrator has had another password" in team.said()
    assert team.ask("GET", "users/get?username=ana", ("admin", ADMINISTRATOR))[0] == 200

    family = team.family()
    assert team.stop() == 0
    assert not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert not is_open(team.port)
    assert not (team.folder / "postgres/postmaster.pid").exists()

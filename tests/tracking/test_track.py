"""The stage `track` as a process: into MLflow, or into the outbox within seconds and with one warning."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages import files, paths
from stages.execution import Execution, Journal
from stages.params import Params, load_params
from stages.tracking import outbox
from stages.tracking.fingerprint import fingerprint_of_folder
from stages.tracking.store import Store
from stages.tracking.sync import track_restored
from tests.tracking.lab import (
    free_port,
    history,
    is_open,
    journalled,
    only_run,
    run_stage,
    train_execution,
    wait_until,
    write_results,
)

NO_MLFLOW = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "mlflow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
HALF_HANGING = """
import http.server, json, sys, threading, time
class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        experiment = {"experiment_id": "1", "name": "noam-lab", "artifact_location": "x", "lifecycle_stage": "active"}
        answer = json.dumps({"experiment": experiment}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def do_POST(self):
        time.sleep(600)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Server).serve_forever()
"""


def receipt() -> str:
    return str(files.read_json(paths.TRACKED)["fingerprint"])


def test_an_execution_becomes_a_finished_run(store: Store, execution: Execution) -> None:
    done = run_stage("stages.track")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    run = only_run(store)
    assert run.info.status == "FINISHED"
    assert run.data.tags["noam.complete"] == "yes"
    assert run.data.tags["noam.fingerprint"] == receipt() == fingerprint_of_folder()
    assert history(store, run, "train/loss") == journalled(execution, "train/loss")
    assert Execution.current() is None
    assert outbox.kept(execution) is None


def test_run_again_it_adds_no_run(store: Store, execution: Execution) -> None:
    for name in ("first-name", "second-name"):
        done = run_stage("stages.track", DVC_EXP_NAME=name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for name in ("second-name", "", "third"):
        assert not track_restored(store, Path(), receipt(), name)
    assert only_run(store).data.tags["dvc.experiment"] == "second-name, third"
    assert len(Execution.all()) == 1


def test_results_of_a_cache_become_a_run_once(store: Store, workspace: Path) -> None:
    assert run_stage("stages.track").returncode == 0
    assert not track_restored(store, Path(), receipt(), "")
    run = only_run(store)
    assert run.data.tags["noam.kind"] == "restored"
    assert run.info.status == "FINISHED"
    expected = [(record["step"], record["loss"]) for record in files.read_json(paths.HISTORY)]
    assert [(step, value) for step, value, _ in history(store, run, "train/loss")] == expected
    assert run.data.metrics["eval/train_accuracy"] == files.read_json(paths.VALIDATION)[-1]["accuracy"]


def test_an_execution_whose_results_were_replaced_is_killed(
    store: Store, execution: Execution, workspace: Path
) -> None:
    write_results(workspace, seed=7)  # as `git checkout; dvc checkout` would
    assert run_stage("stages.track").returncode == 0
    found = {run.data.tags["noam.kind"]: run for run in store.runs()}
    assert found["restored"].info.status == "FINISHED"
    assert execution.events()[-1]["event"] == "killed"
    assert found["trained"].info.status == "KILLED"


def away(kind: str, workspace: Path, tmp_path: Path) -> dict[str, str]:
    """Take MLflow away in one of the ways that happen; the environment that goes with it."""
    if kind == "refused":
        return {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{free_port()}"}
    if kind == "damaged":
        (workspace / "mlflow.db").write_bytes(b"SQLite format 3\0" + b"\x7f" * 9000)
    if kind == "absent":
        (tmp_path / "hook").mkdir()
        (tmp_path / "hook/sitecustomize.py").write_text(NO_MLFLOW, encoding="utf-8")
        return {"PYTHONPATH": str(tmp_path / "hook")}
    if kind == "no folder":
        (workspace / "a file").touch()
        return {"MLFLOW_TRACKING_URI": f"sqlite:///{workspace}/a file/mlflow.db"}
    return {}


def assert_kept(done: subprocess.CompletedProcess[str], seconds: float, execution: Execution, reason: str) -> None:
    """Everything complete, one warning that says what to do, little time lost, and the results in the outbox."""
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("track: warning: ")
    assert re.search(reason, lines[0]), lines[0]
    assert "run `noam sync`" in lines[0]
    assert seconds < 15
    assert receipt() == outbox.fingerprint_of(execution)
    box = outbox.kept(execution)
    assert box is not None
    for path in (paths.METRICS, paths.MODEL / "weights.safetensors", paths.FIGURES / "loss.png", paths.LOCK):
        assert (box / path).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("refused", "refused"),
        ("damaged", "mlflow.db: "),
        ("absent", "MLflow cannot be imported"),
        ("no folder", "a file"),
    ],
)
def test_mlflow_away(kind: str, reason: str, workspace: Path, execution: Execution, tmp_path: Path) -> None:
    environment = away(kind, workspace, tmp_path)
    started = time.monotonic()
    done = run_stage("stages.track", **environment)
    assert_kept(done, time.monotonic() - started, execution, reason)


def test_a_server_that_never_answers(execution: Execution, hanging_server: str) -> None:
    started = time.monotonic()
    done = run_stage("stages.track", MLFLOW_TRACKING_URI=hanging_server)
    assert_kept(done, time.monotonic() - started, execution, "does not answer")


def test_a_server_that_looks_well_and_hangs(execution: Execution) -> None:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import mlflow"], check=True)
    imported = time.monotonic() - started  # which costs more when other tests run
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", HALF_HANGING, str(port)]) as server:
        wait_until(lambda: is_open(port), 20)
        started = time.monotonic()
        done = run_stage("stages.track", MLFLOW_TRACKING_URI=f"http://127.0.0.1:{port}")
        seconds = time.monotonic() - started
        server.kill()
    assert_kept(done, seconds - imported, execution, "no answer for|timed out|Timeout|timeout")


def test_a_database_that_may_only_be_read(store: Store, execution: Execution, workspace: Path) -> None:
    command = [sys.executable, "-m", "stages.track"]
    if os.geteuid() == 0:  # whom no permission stops, until that is given up
        without = ",".join(("-dac_override", "-dac_read_search"))
        command = ["setpriv", f"--bounding-set={without}", f"--inh-caps={without}", *command]
        if shutil.which("setpriv") is None or subprocess.run([*command[:3], "true"], check=False).returncode:
            pytest.skip("root may write everything, and cannot give that up here")
    for file in workspace.glob("mlflow.db*"):
        file.chmod(0o444)
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert_kept(done, time.monotonic() - started, execution, "readonly")


def test_what_the_outbox_kept_is_brought_by_the_next_execution(
    store: Store, workspace: Path, execution: Execution
) -> None:
    run_stage("stages.track", MLFLOW_TRACKING_URI=f"http://127.0.0.1:{free_port()}")
    write_results(workspace, seed=3)  # the workspace has moved on
    second = train_execution()
    assert run_stage("stages.track").returncode == 0

    runs = {run.data.tags["noam.execution"]: store.client.get_run(run.info.run_id) for run in store.runs()}
    assert [runs[one.id].info.status for one in (execution, second)] == ["FINISHED", "FINISHED"]
    losses = [runs[one.id].data.metrics["final/train_loss"] for one in (execution, second)]
    assert losses == [1.8, pytest.approx(2.1)]
    assert outbox.kept(execution) is None


def test_nothing_here_needs_mlflow_before_it_is_used(tmp_path: Path, workspace: Path) -> None:
    away("absent", workspace, tmp_path)
    code = "import stages.track, stages.tracking.follow, stages.tracking.server, stages.tracking.sync, sys"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; assert 'mlflow' not in sys.modules"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "hook")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_follower_is_stopped_before_the_rest_is_sent(store: Store, workspace: Path) -> None:
    execution = Execution.create("trained", load_params(Params).model_dump())
    execution.make_current()
    with Journal(execution) as journal:
        journal.log(1, {"train/loss": files.read_json(paths.HISTORY)[0]["loss"]})
    with subprocess.Popen([sys.executable, "-m", "stages.tracking.follow", str(execution.folder)]) as follower:
        wait_until(lambda: list(store.runs()), 90)
        assert run_stage("stages.track").returncode == 0
        assert follower.wait(15) == 0
    assert only_run(store).info.status == "FINISHED"

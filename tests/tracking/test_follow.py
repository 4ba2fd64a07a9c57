"""The follower: curves while training goes on, the right end, and no trace of MLflow where it is not needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stages import files, paths
from stages.execution import Execution, Journal
from stages.params import Params, load_params
from stages.tracking.store import Store
from tests.tracking.lab import free_port, history, journalled, only_run, wait_until

TRAINER = """
import sys, time
from stages.execution import Execution
from stages.params import Params, load_params
execution = Execution.create("trained", load_params(Params).model_dump())
print(execution.id, flush=True)
time.sleep(60)
"""


@pytest.fixture
def training(workspace: Path) -> Execution:
    """An execution of this process, which has just begun."""
    execution = Execution.create("trained", load_params(Params).model_dump())
    execution.make_current()
    return execution


class Follower:
    """A follower under way, and what it says."""

    def __init__(self, execution: Execution, folder: Path, **environment: str) -> None:
        self.output, self.errors = folder / "follower.out", folder / "follower.err"
        command = [sys.executable, "-X", "importtime", "-m", "stages.tracking.follow", str(execution.folder)]
        with open(self.output, "wb") as output, open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(command, stdout=output, stderr=errors, env={**os.environ, **environment})

    def wait(self, seconds: float) -> int:
        return self.process.wait(seconds)


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Follower]]:
    """Starts followers; none outlives the test."""
    started: list[Follower] = []

    def start(execution: Execution, **environment: str) -> Follower:
        started.append(Follower(execution, tmp_path, **environment))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


Follow = Callable[..., Follower]


def test_curves_are_there_within_seconds(store: Store, training: Execution, follow: Follow) -> None:
    follower = follow(training)
    with Journal(training) as journal:
        journal.log(1, {"train/loss": 3.0})
    wait_until(lambda: [run for run in store.runs() if "train/loss" in run.data.metrics], 90)
    assert only_run(store).info.status == "RUNNING"

    with Journal(training, lines=1) as journal:
        journal.log(2, {"train/loss": 2.0})
    wait_until(lambda: only_run(store).data.metrics["train/loss"] == 2.0, 20)  # some 3 s on an idle machine

    training.append_event("trained")
    assert follower.wait(90) == 0
    assert history(store, only_run(store), "train/loss") == journalled(training, "train/loss")
    assert not (training.folder / "follower.json").exists()


@pytest.mark.parametrize("event", ["trained", "finished"])
def test_training_that_is_over_at_once_costs_no_import(training: Execution, event: str, follow: Follow) -> None:
    training.append_event(event)
    follower = follow(training)
    assert follower.wait(90) == 0
    imports = follower.errors.read_text(encoding="utf-8")
    assert "stages.execution" in imports
    assert "mlflow" not in imports


def test_a_failure_is_recorded_with_its_message(store: Store, training: Execution, follow: Follow) -> None:
    training.close("failed", "update 3: loss nan, no longer finite")
    assert follow(training).wait(90) == 0
    run = only_run(store)
    assert (run.info.status, run.data.tags["noam.message"]) == ("FAILED", "update 3: loss nan, no longer finite")


def test_training_that_was_killed_without_a_word(store: Store, workspace: Path, follow: Follow) -> None:
    with subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True) as trainer:
        try:
            name = trainer.stdout.readline().strip() if trainer.stdout else ""
            execution = Execution(paths.run_state() / "executions" / name)
            record = execution.record.model_copy(update={"owner": execution.record.trainer})  # no dvc above it
            files.write_text(execution.folder / "execution.json", record.model_dump_json())
            follower = follow(execution)
            wait_until(lambda: list(store.runs()), 90)
        finally:
            trainer.kill()
    assert follower.wait(90) == 0
    assert only_run(store).info.status == "KILLED"
    assert execution.events()[-1]["event"] == "killed"


def test_where_the_experiment_is_a_copy_that_goes_away(
    store: Store, workspace: Path, monkeypatch: pytest.MonkeyPatch, follow: Follow
) -> None:
    copy = workspace / ".dvc/tmp/exps/standalone/tmpx"
    shutil.copytree(workspace / "stages", copy / "stages")
    shutil.copy("params.yaml", copy)
    monkeypatch.setenv("DVC_ROOT", str(workspace))
    monkeypatch.chdir(copy)
    training = Execution.create("trained", load_params(Params).model_dump())
    follower = follow(training)
    wait_until(lambda: list(store.runs()), 90)
    monkeypatch.chdir(workspace)
    shutil.rmtree(copy)
    training.close("failed", "the queue was stopped")
    assert follower.wait(90) == 0
    assert only_run(store).info.status == "FAILED"


def test_a_store_that_is_away_is_tried_again_quietly(training: Execution, follow: Follow) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    follower = follow(training, MLFLOW_TRACKING_URI=address)
    wait_until(lambda: "refused" in follower.output.read_text(encoding="utf-8"), 90)
    assert follower.process.poll() is None
    training.append_event("trained")
    assert follower.wait(90) == 0
    said = set(follower.output.read_text(encoding="utf-8").splitlines())
    assert said == {f"{address}: [Errno 111] Connection refused"}
    assert "Traceback" not in follower.errors.read_text(encoding="utf-8")

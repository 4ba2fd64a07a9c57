"""An execution that was killed and goes on: one run, each step once, and nothing left of the earlier end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stages import files, paths
from stages.execution import Execution
from stages.tracking import outbox
from stages.tracking.fingerprint import fingerprint_of_folder
from stages.tracking.store import Store
from stages.tracking.sync import Account, sync_all, sync_executions, sync_one
from tests.tracking.lab import (
    REPOSITORY,
    UPDATES,
    history,
    journal_results,
    journalled,
    only_run,
    run_stage,
    wait_until,
)

KEYS = ("train/loss", "optim/lr", "window/loss_mean", "window/loss_max", "eval/train_loss")
TRAINER = """
import time
from stages.execution import Execution
from stages.params import Params, load_params
from tests.tracking.lab import ENVIRONMENT, journal_results
execution = Execution.create("trained", load_params(Params).model_dump(), environment=ENVIRONMENT)
execution.make_current()
journal_results(execution, until=20)
print(execution.id, flush=True)
time.sleep(100)
"""


@pytest.fixture
def killed(store: Store, workspace: Path) -> Execution:
    """An execution whose process was killed with -9 after update 20, which the follower has recorded."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", TRAINER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as trainer:
        try:
            name = trainer.stdout.readline().strip() if trainer.stdout else ""
            execution = Execution(paths.run_state() / "executions" / name)
            alone = execution.record.model_copy(update={"owner": execution.record.trainer})  # no dvc above it
            files.write_text(execution.folder / "execution.json", alone.model_dump_json())
            follower = subprocess.Popen([sys.executable, "-m", "stages.tracking.follow", str(execution.folder)])
            wait_until(lambda: [run for run in store.runs() if "train/loss" in run.data.metrics], 90)
        finally:
            trainer.kill()
    assert follower.wait(90) == 0
    return execution


def finish(execution: Execution) -> None:
    """The rest of the training, which computes again what it did after its last checkpoint."""
    journal_results(execution)
    execution.append_event("trained")


def test_each_step_is_there_once(
    store: Store, workspace: Path, killed: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = only_run(store)
    assert run.info.status == "KILLED"
    assert len(history(store, run, "train/loss")) == 20
    assert "ended without a word" in run.data.tags["mlflow.note.content"]

    monkeypatch.setenv("DVC_EXP_NAME", "second-name")
    killed.resume()
    killed.make_current()
    with subprocess.Popen([sys.executable, "-m", "stages.tracking.follow", str(killed.folder)]) as follower:
        try:
            wait_until(lambda: only_run(store).info.status == "RUNNING", 90)
            tags = only_run(store).data.tags
            assert not {"noam.message", "mlflow.note.content"} & tags.keys()
            finish(killed)
            assert run_stage("stages.track").returncode == 0
        finally:
            follower.kill()

    after = only_run(store)
    assert (after.info.run_id, after.info.status) == (run.info.run_id, "FINISHED")
    assert after.data.tags["noam.complete"] == "yes"
    assert not {"noam.message", "mlflow.note.content"} & after.data.tags.keys()
    for key in KEYS:
        assert history(store, after, key) == journalled(killed, key) != []
    assert [step for step, _, _ in history(store, after, "train/loss")] == list(range(1, UPDATES + 1))
    expected = [(one["step"], one["loss"]) for one in files.read_json(paths.HISTORY)]
    assert [(step, value) for step, value, _ in history(store, after, "train/loss")] == expected
    assert after.data.tags["dvc.experiment"] == "second-name"  # under the first one it never came to an end
    assert after.info.run_name.endswith(" · second-name")
    assert sync_all() == 0
    assert only_run(store).data.tags["noam.resumed"] == "1"


def test_killed_again_and_again(store: Store, execution: Execution, workspace: Path) -> None:
    for reason in ("first", "second"):
        execution.append_event("killed", reason)
        sync_executions(store, Account())
        assert only_run(store).data.tags["mlflow.note.content"] == f"KILLED: {reason}"
        execution.resume()
        sync_one(store, execution, None)
        assert only_run(store).info.status == "RUNNING"
    outbox.set_fingerprint(execution, str(fingerprint_of_folder()))
    finish(execution)
    execution.close("finished")
    assert sync_all() == 0
    run = only_run(store)
    assert (run.info.status, run.data.tags["noam.resumed"]) == ("FINISHED", "2")
    assert run.info.end_time == execution.events()[-1]["t"]
    for key in KEYS:
        assert history(store, run, key) == journalled(execution, key)


def test_a_later_follower_takes_the_place_of_an_earlier_one(store: Store, execution: Execution) -> None:
    execution.resume()  # so that there is no `trained`
    command = [sys.executable, "-m", "stages.tracking.follow", str(execution.folder)]
    with subprocess.Popen(command) as first:
        wait_until(lambda: list(store.runs()), 90)
        with subprocess.Popen(command) as second:
            assert first.wait(60) == 0
            assert second.poll() is None
            execution.close("failed", "enough")
            assert second.wait(60) == 0
    assert only_run(store).info.status == "FAILED"


def test_one_that_was_deleted_before_it_was_resumed_gets_a_new_run(
    store: Store, execution: Execution, workspace: Path
) -> None:
    execution.append_event("killed", "a mistake")
    sync_one(store, execution, None)
    deleted = only_run(store).info.run_id
    store.client.delete_run(deleted)
    execution.resume()
    finish(execution)
    assert run_stage("stages.track").returncode == 0
    found = {run.info.lifecycle_stage: run for run in store.runs()}
    assert found["deleted"].info.run_id == deleted
    run = found["active"]
    assert (run.info.status, run.data.tags["noam.complete"]) == ("FINISHED", "yes")
    assert history(store, run, "train/loss") == journalled(execution, "train/loss") != []
    account = Account()
    sync_executions(store, account)
    assert (account.present, account.brought, account.deleted) == (1, [], 0)

    store.client.delete_run(run.info.run_id)  # which is to be left so
    account = Account()
    sync_executions(store, account)
    assert (account.present, account.brought, account.deleted) == (0, [], 1)
    assert len(list(store.runs())) == 2

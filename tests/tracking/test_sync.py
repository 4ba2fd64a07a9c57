"""`noam sync`: whatever is missing is brought, from wherever its files are; what is there stays as it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from stages import files, paths
from stages.errors import TrackingError
from stages.execution import Execution
from stages.tracking import outbox, restore
from stages.tracking.fingerprint import fingerprint_of_folder
from stages.tracking.store import Store, connect
from stages.tracking.sync import sync_all
from tests.tracking.lab import (
    STAGES,
    free_port,
    history,
    journalled,
    only_run,
    set_params,
    train_execution,
    write_results,
)

KILLED_HALF_WAY = """
import os, signal, sys
from stages.tracking import sync
from stages.tracking.store import connect
left = int(sys.argv[1])
def progress(what):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
store = connect()
sync.sync_executions(store, sync.Account(), progress=progress)
"""


@pytest.fixture
def pending(workspace: Path, execution: Execution) -> Execution:
    """A finished execution whose results wait in the outbox; the workspace has gone on to others."""
    outbox.set_fingerprint(execution, str(fingerprint_of_folder()))
    execution.close("finished")
    outbox.keep(execution, workspace)
    (workspace / paths.LOCK).unlink()
    return execution


def test_the_outbox_is_emptied_into_the_store(
    store: Store, pending: Execution, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sync_all() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "runs: 1 brought, 0 already there"
    run = only_run(store)
    assert (run.info.status, run.data.tags["noam.complete"]) == ("FINISHED", "yes")
    assert outbox.kept(pending) is None

    assert sync_all() == 0
    assert capsys.readouterr() == ("runs: 0 brought, 1 already there\n", "")


@pytest.mark.parametrize("after", [3, 8])
def test_killed_half_way_and_repeated(store: Store, pending: Execution, after: int) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED_HALF_WAY, str(after)], check=False)
    assert killed.returncode == -9
    assert sync_all() == 0
    run = only_run(store)
    assert run.data.tags["noam.complete"] == "yes"
    for key in ("train/loss", "optim/lr", "window/loss_mean", "eval/train_loss"):
        assert history(store, run, key) == journalled(pending, key) != []
    assert [(m.step, m.value) for m in store.client.get_metric_history(run.info.run_id, "final/train_loss")] == [
        (0, 1.8)
    ]
    assert len(store.client.search_logged_models([store.experiment_id])) == 1
    assert len(run.outputs.model_outputs) == 1
    assert len(store.client.list_artifacts(run.info.run_id, "images")) == 8


def test_a_fresh_clone_brings_the_results_that_it_has(
    store: Store, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sync_all() == 0
    assert sync_all() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "runs: 0 brought, 1 already there"
    run = only_run(store)
    assert run.data.tags["noam.kind"] == "restored"
    (execution,) = Execution.all()
    started = execution.record.started
    assert [t for _, _, t in history(store, run, "train/loss")] == [
        started + s for s, _, _ in journalled(execution, "train/loss")
    ]


def test_a_clone_without_its_files_brings_nothing(store: Store, workspace: Path) -> None:
    shutil.rmtree(paths.MODEL)
    assert sync_all() == 0
    assert list(store.runs()) == []


def test_results_that_changed_since_dvc_looked_are_left_alone(store: Store, workspace: Path) -> None:
    files.write_text(paths.HISTORY, paths.HISTORY.read_text(encoding="utf-8") + "\n")
    assert sync_all() == 0
    assert list(store.runs()) == []


def test_a_deleted_database_is_filled_again(workspace: Path, execution: Execution, empty_database: Path) -> None:
    outbox.set_fingerprint(execution, str(fingerprint_of_folder()))
    execution.close("finished")
    command = [sys.executable, "-c", "from stages.tracking.sync import sync_all; sync_all()"]
    for _ in range(2):
        for file in workspace.glob("mlflow.db*"):
            file.unlink()
        shutil.rmtree(workspace / "mlartifacts", ignore_errors=True)
        shutil.copy(empty_database, workspace / "mlflow.db")
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "runs: 1 brought, 0 already there"

    store = connect()
    run = only_run(store)
    assert run.data.tags["noam.execution"] == execution.id
    assert run.data.metrics["final/train_loss"] == 1.8
    assert history(store, run, "train/loss") == journalled(execution, "train/loss")


def test_files_that_are_nowhere_are_named(store: Store, pending: Execution, capsys: pytest.CaptureFixture[str]) -> None:
    outbox.drop(pending)
    assert sync_all() == 1
    output = capsys.readouterr().out
    assert f"could not: the files of {pending.id}: " in output
    assert "1 could not" in output
    assert history(store, only_run(store), "train/loss") == journalled(pending, "train/loss")


def test_a_store_that_is_away(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TrackingError, match="refused"):
        sync_all()


def test_restored_results_that_another_run_has_by_now(store: Store, workspace: Path) -> None:
    fingerprint = str(fingerprint_of_folder())
    restored = restore.restored_execution(workspace, fingerprint)
    outbox.add_experiment(restored, "late-name")
    outbox.keep(restored, workspace)
    made_elsewhere = store.client.create_run(store.experiment_id, tags={"noam.fingerprint": fingerprint})
    assert sync_all() == 0
    run = only_run(store)
    assert run.info.run_id == made_elsewhere.info.run_id
    assert run.data.tags["dvc.experiment"] == "late-name"
    assert Execution.all() == []


def test_a_restoration_cut_short_is_swept_away(store: Store, workspace: Path) -> None:
    cut = restore.restored_execution(workspace, "0" * 64)
    (cut.folder / "fingerprint").unlink()
    record = cut.record.model_copy(update={"trainer": {"pid": 1, "created": 0.0}, "owner": {"pid": 1, "created": 0.0}})
    files.write_text(cut.folder / "execution.json", record.model_dump_json(warnings=False))
    paths.LOCK.unlink()
    assert sync_all() == 0
    assert (Execution.all(), list(store.runs())) == ([], [])


# -- results that only DVC has -------------------------------------------------------------------------------------


@pytest.fixture
def dvc(workspace: Path) -> Callable[..., str]:
    """A repository of git and DVC in the workspace, whose stages are replaced by ones that only copy files."""

    def run(*command: str) -> str:
        arguments = command if command[0] == "git" else (sys.executable, "-m", *command)
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    stages = {}
    for name, (deps, outs) in STAGES.items():
        code = f"python copy_results.py {' '.join(outs)}"
        stages[name] = {"cmd": code, "deps": deps, "params": ["seed"] if name == "train" else [], "outs": outs}
    write_results(workspace, seed=1)
    for name in ("data", "reports"):
        shutil.copytree(workspace / name, workspace / "made/1" / name)
    write_results(workspace, seed=0)
    for name in ("data", "reports"):
        shutil.copytree(workspace / name, workspace / "made/0" / name)
    files.write_text(
        workspace / "copy_results.py",
        "import pathlib, shutil, sys, yaml\n"
        "made = pathlib.Path('made', str(yaml.safe_load(open('params.yaml'))['seed']))\n"
        "for name in sys.argv[1:]:\n"
        "    pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)\n"
        "    copy = shutil.copytree if (made / name).is_dir() else shutil.copy\n"
        "    copy(made / name, name)\n",
    )
    files.write_text(paths.PIPELINE, yaml.safe_dump({"stages": stages}))
    paths.LOCK.unlink()
    for name in ("prepared", "vocab", "model", "evaluation"):
        shutil.rmtree(workspace / "data" / name)
    shutil.rmtree(workspace / "reports")
    run("git", "init", "-q")
    for key, value in {"user.name": "x", "user.email": "x@example.org", "commit.gpgsign": "false"}.items():
        run("git", "config", key, value)
    run("dvc", "init", "-q")
    run("dvc", "config", "core.analytics", "false")
    files.write_text(workspace / ".gitignore", "/.runstate/\n/mlflow.db*\n/mlartifacts/\n__pycache__/\n")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run("git", "add", ".")
    run("dvc", "repro", "-q")
    run("git", "add", ".")
    run("git", "commit", "-qm", "first")
    return run


def test_experiments_and_head_come_out_of_the_cache(
    store: Store, workspace: Path, dvc: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    dvc("dvc", "exp", "run", "-q", "-n", "other-seed", "-S", "seed=1")
    for folder in ("data/model", "data/evaluation", "reports"):
        shutil.rmtree(workspace / folder)
    assert sync_all() == 0, capsys.readouterr().out
    found = {run.data.params["seed"]: store.client.get_run(run.info.run_id) for run in store.runs()}
    assert sorted(found) == ["0", "1"]
    assert [found[seed].data.metrics["final/train_loss"] for seed in "01"] == [1.8, pytest.approx(1.9)]
    assert found["1"].data.tags["dvc.experiment"] == "other-seed"
    head = dvc("git", "rev-parse", "HEAD").strip()
    assert {run.data.tags["mlflow.source.git.commit"] for run in found.values()} == {head}

    dvc("dvc", "exp", "rename", "-q", "other-seed", "new-name")
    capsys.readouterr()
    assert sync_all() == 0
    assert capsys.readouterr().out == "runs: 0 brought, 2 already there\n"
    names = store.client.get_run(found["1"].info.run_id).data.tags["dvc.experiment"]
    assert names == "other-seed, new-name"


def test_results_that_no_commit_refers_to_come_out_of_the_cache(
    store: Store, workspace: Path, dvc: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A plain `dvc repro` whose results were replaced and never committed; then the database is lost."""
    set_params(workspace, seed=1)
    dvc("dvc", "repro", "-q")
    execution = train_execution()
    outbox.set_fingerprint(execution, str(fingerprint_of_folder()))
    execution.close("finished")
    figure = (paths.FIGURES / "attention-p1-L0H1.png").read_bytes()
    dvc("git", "checkout", "-q", "--", ".")
    dvc("dvc", "checkout", "-q")
    assert files.read_json(paths.METRICS)["train"]["loss"] == 1.8

    assert sync_all() == 0, capsys.readouterr().out
    (run,) = store.tagged("noam.execution", execution.id)
    assert (run.data.tags["noam.complete"], run.data.metrics["final/train_loss"]) == ("yes", pytest.approx(1.9))
    fetched = store.client.download_artifacts(run.info.run_id, "figures/attention-p1-L0H1.png", str(workspace.parent))
    assert Path(fetched).read_bytes() == figure
    assert len(store.client.search_logged_models([store.experiment_id])) == 2  # HEAD's as well

    shutil.rmtree(workspace / ".dvc/cache")
    assert sync_all() == 0
    store.client.delete_tag(run.info.run_id, "noam.complete")
    assert sync_all() == 1
    assert f"could not: the files of {execution.id}: " in capsys.readouterr().out


def test_an_experiment_whose_files_the_cache_has_lost(
    store: Store, workspace: Path, dvc: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    dvc("dvc", "exp", "run", "-q", "-n", "lost", "-S", "seed=1")
    shutil.rmtree(workspace / ".dvc/cache")
    for folder in ("data/model", "data/evaluation", "reports"):
        shutil.rmtree(workspace / folder)
    assert sync_all() == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "runs: 0 brought, 0 already there, 2 could not"
    assert re.match(r"could not: commit [0-9a-f]{7}: its files are neither", lines[0])
    assert re.match(r"could not: experiment lost: its files are neither .*`dvc pull`", lines[1])
    assert list(store.runs()) == []

"""How a run ends badly, and what MLflow shows of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.pipeline.project import Project

pytestmark = pytest.mark.pipeline


def until_training(process: subprocess.Popen[str]) -> None:
    """Read on until training reports an update."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("train: update") and "update 0 " not in line:
            return
    pytest.fail("training never started")


def trainer(process: subprocess.Popen[str]) -> psutil.Process:
    (found,) = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if child.cmdline()[-1:] == ["stages.train"] and "python" in child.name()
    ]
    return found


def status_within(project: Project, seconds: float, wanted: str) -> Any:
    """The only run of the store once it has that status."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        runs = project.runs()
        if runs and runs[-1].info.status == wanted:
            return runs[-1]
        time.sleep(0.5)
    pytest.fail(f"no run is {wanted}: {[run.info.status for run in project.runs()]}")


@pytest.mark.parametrize(("number", "to_group"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_signal_leaves_the_run_killed(fresh: Callable[..., Project], number: signal.Signals, to_group: bool) -> None:
    """SIGTERM to the training process; Ctrl-C to all that runs in the terminal. The follower records it."""
    project = fresh(epochs=3000)
    process = project.start("dvc", "repro", NOAM_LIVE="on")
    until_training(process)
    if to_group:
        os.killpg(process.pid, number)
    else:
        trainer(process).send_signal(number)
    output = process.communicate(timeout=60)[0]
    assert process.returncode != 0
    assert f"stopped by {number.name}" in output
    assert "Traceback" not in output
    run = status_within(project, 40, "KILLED")
    assert number.name in str(run.data.tags)


def test_exception_leaves_the_run_failed_with_its_message(fresh: Callable[..., Project]) -> None:
    project = fresh(epochs=3)
    session = project.root / "stages/training/session.py"
    text, step = session.read_text(encoding="utf-8"), "        self._engine.step(norm)"
    assert step in text
    session.write_text(text.replace(step, "        raise RuntimeError('la pérdida')"), "utf-8")
    done = project.run("dvc", "repro", check=False, NOAM_LIVE="on")
    assert done.returncode != 0
    run = status_within(project, 40, "FAILED")
    assert "la pérdida" in str(run.data.tags)


def test_kill_9_leaves_no_run_running_after_the_next_sync(fresh: Callable[..., Project]) -> None:
    project = fresh(epochs=3000)
    process = project.start("dvc", "repro")
    until_training(process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    project.run("noam", "sync")
    (run,) = project.runs()
    assert run.info.status == "KILLED"

    project.set_params(epochs=3)
    project.run("dvc", "repro")
    assert [run.info.status for run in project.runs()] == ["KILLED", "FINISHED"]


def test_curves_appear_while_training_runs(fresh: Callable[..., Project]) -> None:
    project = fresh(epochs=3000)
    process = project.start("dvc", "repro", NOAM_LIVE="on")
    until_training(process)
    started = time.monotonic()
    points: list[Any] = []
    while not points and time.monotonic() < started + 60:
        time.sleep(0.5)
        if runs := project.runs():
            points = project.client().get_metric_history(runs[0].info.run_id, "train/loss")
    waited = time.monotonic() - started
    assert process.poll() is None, "training is over already"
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert points, "no curve after a minute of training"
    print(f"first points after {waited:.1f} s")

"""Killed at any moment, a run goes on where it was and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from stages.optim.schedules import noam_rate
from tests.pipeline.project import Project

pytestmark = pytest.mark.pipeline

LONG = {"epochs": 60, "eval_every": 20, "checkpoint_every": 3}  # 540 updates, a third of the time spent saving
UPDATES = 540


def until_training(process: subprocess.Popen[str]) -> list[str]:
    """What it says until it trains, or to its end."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(("train: update", "train: goes on", "train: seed")):
            break
    return lines


def trainer(project: Project) -> psutil.Process | None:
    """The process that trains in this copy, or in a temporary folder of it."""
    for process in psutil.process_iter(["cmdline", "name"]):
        if (
            process.info["cmdline"]
            and process.info["cmdline"][-1] == "stages.train"
            and "python" in process.info["name"]
        ):
            try:
                if Path(process.cwd()).is_relative_to(project.root.resolve()):
                    return process
            except psutil.Error:
                continue
    return None


def gone_on_after(output: str) -> int:
    """After which update a run says it went on; 0 where it says nothing."""
    found = [line for line in output.splitlines() if line.startswith("train: goes on after update ")]
    assert len(found) <= 1
    return int(found[0].split()[5]) if found else 0


def checkpoints(project: Project) -> list[Path]:
    folder = project.root / ".runstate/checkpoints"
    return sorted(folder.iterdir()) if folder.exists() else []


def kill_at_random(project: Project, times: int, draw: random.Random) -> list[int]:
    """Start the pipeline and kill it while it trains, again and again; gives where each start went on."""
    steps = []
    for i in range(times):
        process = project.start("dvc", "repro")
        said = until_training(process)
        time.sleep(draw.uniform(0.0, 1.0))
        victim = trainer(project)
        if i % 2 and victim is not None:
            victim.kill()  # dvc lives on, and reports it
        else:
            os.killpg(process.pid, signal.SIGKILL)
        rest = process.communicate(timeout=60)[0]
        steps.append(gone_on_after("".join(said) + rest))
        if process.returncode == 0:
            pytest.fail(f"it came to its end before kill {i + 1}; make the run longer")
    return steps


@pytest.mark.parametrize(
    ("kills", "epochs"), [(5, 150), pytest.param(50, 1500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_killed_at_random_it_ends_with_the_same_lock(fresh: Callable[..., Project], kills: int, epochs: int) -> None:
    project = fresh(**LONG | {"epochs": epochs})
    steps = kill_at_random(project, kills, random.Random(kills))
    assert steps == sorted(steps)
    output = project.run("dvc", "repro").stdout
    assert gone_on_after(output) >= steps[-1]
    assert gone_on_after(output) > 0
    assert gone_on_after(output) % 3 == 0
    assert "starts anew" not in output
    assert checkpoints(project) == []
    resumed = project.lock

    # Each step is once in the journal, and once in MLflow.
    (run,) = [run for run in project.runs() if run.info.status == "FINISHED"]
    assert {run.info.status for run in project.runs()} <= {"FINISHED", "KILLED"}
    history = project.client().get_metric_history(run.info.run_id, "optim/lr")
    records = json.loads((project.root / "reports/history.json").read_text(encoding="utf-8"))
    assert [record["step"] for record in records] == list(range(1, 9 * epochs + 1))
    assert [record["lr"] for record in records] == [noam_rate(t, 128, 40000) for t in range(1, 9 * epochs + 1)]
    logged = [(point.step, point.value) for point in history]
    assert len(set(logged)) == len(logged)
    stride = -(-9 * epochs // 3000)
    assert [step for step, _ in logged] == [
        t for t in range(1, 9 * epochs + 1) if t % stride == 1 or stride == 1 or t == 9 * epochs
    ]
    assert logged == [(t, records[t - 1]["lr"]) for t, _ in logged]
    journal = (project.root / ".runstate/executions" / run.data.tags["noam.execution"] / "journal.jsonl").read_text()
    lines = [json.loads(line) for line in journal.splitlines()]
    keys = [(line["s"], name) for line in lines if "m" in line for name in line["m"]]
    assert len(set(keys)) == len(keys)

    assert gone_on_after(project.run("dvc", "repro", "-f", "-s", "train").stdout) == 0
    assert project.lock == resumed


def test_after_a_kill_other_parameters_start_anew_and_say_so(fresh: Callable[..., Project]) -> None:
    project = fresh(**LONG)
    kill_at_random(project, 1, random.Random(0))
    wait_for_a_checkpoint(project)
    project.set_params(warmup=8000, checkpoint_every=500)
    done = project.run("dvc", "repro")
    (line,) = [line for line in done.stdout.splitlines() if "starts anew" in line]
    assert line.startswith("train: starts anew: the run interrupted after update ")
    assert "differs in params.yaml (warmup)" in line
    assert gone_on_after(done.stdout) == 0
    records = json.loads((project.root / "reports/history.json").read_text(encoding="utf-8"))
    assert [record["lr"] for record in records[:5]] == [noam_rate(t, 128, 8000) for t in range(1, 6)]
    assert len(records) == UPDATES
    (run,) = [run for run in project.runs() if run.info.status == "FINISHED"]
    assert run.data.params["warmup"] == "8000"

    # The state of the first is still there, and is not gone on with where one does not want it.
    assert [path.suffix for path in checkpoints(project) if path.is_dir()] == [""]
    project.set_params(warmup=40000, resume="false")
    done = project.run("dvc", "repro", "train")
    assert gone_on_after(done.stdout) == 0
    assert "train: update 0 of 540" in done.stdout
    assert checkpoints(project) == []
    records = json.loads((project.root / "reports/history.json").read_text(encoding="utf-8"))
    assert [record["lr"] for record in records] == [noam_rate(t, 128, 40000) for t in range(1, UPDATES + 1)]


def wait_for_a_checkpoint(project: Project) -> None:
    """There is one already, or the next start is left alone until there is."""
    if list((project.root / ".runstate/checkpoints").glob("*/state.safetensors")):
        return
    process = project.start("dvc", "repro")
    until_training(process)
    deadline = time.monotonic() + 60
    while not list((project.root / ".runstate/checkpoints").glob("*/state.safetensors")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)


def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.2)
    return found


@pytest.mark.slow
def test_a_queued_experiment_that_was_killed_goes_on_when_it_is_queued_again(fresh: Callable[..., Project]) -> None:
    """In another temporary folder, which DVC makes for it."""
    project = fresh(**LONG | {"epochs": 300, "checkpoint_every": 20})

    def queue(name: str) -> None:
        project.run("dvc", "exp", "run", "--queue", "-n", name, "-S", "seed=4")

    def run_queue() -> str:
        """Returns when the worker, which has the same standard output, has ended; gives the last listing."""
        project.run("dvc", "queue", "start", "-j", "1")
        return project.run("dvc", "queue", "status").stdout

    queue("first")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_queue)
        until(lambda: list((project.root / ".runstate/checkpoints").glob("*/state.safetensors")))
        victim = trainer(project)
        assert victim is not None
        assert ".dvc/tmp/exps" in victim.cwd()
        victim.kill()
        assert "Failed" in running.result()

    queue("second")
    assert "Success" in run_queue()
    said = project.run("dvc", "queue", "logs", "second").stdout
    assert gone_on_after(said) > 0
    assert checkpoints(project) == []
    project.run("dvc", "exp", "apply", "second")
    resumed = project.outputs("train")

    shutil.rmtree(project.root / ".dvc/cache/runs")  # or DVC would bring back that very result
    project.run("dvc", "repro", "-f", "-s", "train")
    assert project.outputs("train") == resumed
    (run,) = [run for run in project.runs() if run.info.status == "FINISHED"]
    points = project.client().get_metric_history(run.info.run_id, "train/loss")
    assert [point.step for point in points] == list(range(1, 2701))

"""`dvc exp run`, the queue and the comparison commands, all into the one store of the main workspace."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.pipeline.project import Project, clean_environment

pytestmark = pytest.mark.pipeline


def finish_queue(project: Project, jobs: int) -> str:
    """Start the workers as people do, wait until the queue is empty, give its final listing.

    Without a pipe: one of two workers that end at once may stay, and would keep it open.
    """
    command, quiet = ["dvc", "queue", "start", "-j", str(jobs)], subprocess.DEVNULL
    subprocess.run(
        command, cwd=project.root, env=clean_environment(), stdout=quiet, stderr=quiet, timeout=120, check=True
    )
    deadline = time.monotonic() + 280
    while time.monotonic() < deadline:
        status = project.run("dvc", "queue", "status").stdout
        if "Queued" not in status and "Running" not in status:
            return status
        time.sleep(2)
    pytest.fail(f"the queue did not finish\n{status}")


@pytest.fixture(scope="module")
def warmup_4000(project: Project) -> Project:
    project.run("dvc", "exp", "run", "-n", "short-ramp", "-S", "warmup=4000")
    return project


def test_exp_run_is_a_second_run(warmup_4000: Project) -> None:
    first, second = warmup_4000.runs()
    assert (first.data.params["warmup"], second.data.params["warmup"]) == ("40000", "4000")
    assert second.data.tags["dvc.experiment"] == "short-ramp"
    assert "warmup=4000" in second.info.run_name
    assert second.data.tags["mlflow.source.git.commit"] == warmup_4000.run("git", "rev-parse", "HEAD").stdout.strip()


def test_exp_show_compares_losses(warmup_4000: Project) -> None:
    table = warmup_4000.run("dvc", "exp", "show", "--csv").stdout.splitlines()
    header = table[0].split(",")
    (row,) = [line.split(",") for line in table if "short-ramp" in line]
    assert row[header.index("warmup")] == "4000"
    assert float(row[header.index("train.loss")]) > 0


def test_diffs_show_something(warmup_4000: Project) -> None:
    metrics = json.loads(warmup_4000.run("dvc", "metrics", "diff", "--json").stdout)
    assert metrics["reports/metrics.json"]["train.loss"]["diff"] != 0
    params = json.loads(warmup_4000.run("dvc", "params", "diff", "--json").stdout)
    changed = params["params.yaml"]
    assert (changed["warmup"]["old"], changed["warmup"]["new"]) == (40000, 4000)
    plots = warmup_4000.run("dvc", "plots", "diff", "--json", "HEAD").stdout
    assert "reports/history.json" in plots
    assert '"workspace"' in plots


def test_queue_fills_the_store_of_the_main_workspace(fresh: Callable[..., Project]) -> None:
    """Two workers meet at the creation of a database that is not there."""
    project = fresh(epochs=8)
    project.run("dvc", "exp", "run", "--queue", "-S", "warmup=300,500")
    finish_queue(project, jobs=2)

    queued = project.runs()
    assert sorted(run.data.params["warmup"] for run in queued) == ["300", "500"]
    for run in queued:
        assert run.info.status == "FINISHED"
        figures = {artifact.path for artifact in project.client().list_artifacts(run.info.run_id, "figures")}
        assert "figures/loss.png" in figures
        assert (project.root / "mlartifacts").resolve().as_uri() in run.info.artifact_uri
        assert len(project.client().get_metric_history(run.info.run_id, "train/loss")) == 72
    assert not (project.root / "mlruns").exists()


def test_queued_experiment_runs_the_code_of_its_snapshot(project: Project) -> None:
    """An edited module that is in git's index when queued, and gone from the workspace when the worker starts."""
    project.run("git", "checkout", "-q", "--", ".")
    measures = project.root / "stages/analysis/measures.py"
    original = measures.read_text(encoding="utf-8")
    measures.write_text(original.replace("**counted, ", '**counted, "tokens": 1048, '), encoding="utf-8")
    assert measures.read_text(encoding="utf-8") != original
    project.run("git", "add", "stages/analysis/measures.py")
    project.run("dvc", "exp", "run", "--queue", "-n", "edited", "-S", "epochs=7")
    project.run("git", "reset", "-q", "--hard")
    finish_queue(project, jobs=1)

    (run,) = [run for run in project.runs() if run.data.params.get("epochs") == "7"]
    assert run.data.metrics["final/train_tokens"] == 1048
    assert json.loads((project.root / "reports/metrics.json").read_text())["train"]["tokens"] == 48


def test_run_restored_from_the_run_cache_adds_no_second_run(warmup_4000: Project) -> None:
    warmup_4000.run("git", "checkout", "-q", "--", ".")
    warmup_4000.run("dvc", "exp", "run", "-S", "warmup=4000", "-S", "seed=3")
    before = len(warmup_4000.runs())
    warmup_4000.run("dvc", "exp", "run", "--temp", "-S", "warmup=4000", "-S", "seed=3")
    assert len(warmup_4000.runs()) == before

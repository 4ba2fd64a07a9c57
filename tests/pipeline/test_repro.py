"""`dvc repro`: what it makes, when it does nothing, and that it makes the same bytes again."""

from __future__ import annotations

import json
import os
import re

import pytest
import yaml

from tests.pipeline.project import Project

pytestmark = pytest.mark.pipeline

STAGES = ["prepare", "vocab", "train", "evaluate", "plots", "track"]


def stages_run(output: str) -> list[str]:
    return re.findall(r"Running stage '(\w+)'", output)


def test_first_run_has_made_everything(project: Project) -> None:
    assert list(yaml.safe_load(project.lock)["stages"]) == STAGES
    metrics = json.loads((project.root / "reports/metrics.json").read_text())
    assert metrics["measured_on"].startswith("training text (no held-out text")
    assert metrics["train"]["tokens"] == 48
    assert metrics["train"]["floor"] == pytest.approx(0.4120, abs=5e-5)
    history = json.loads((project.root / "reports/history.json").read_text())
    assert [record["step"] for record in history] == list(range(1, 181))

    (run,) = project.runs()
    assert run.info.status == "FINISHED"
    assert run.data.params["warmup"] == "40000"
    assert run.data.metrics["final/train_loss"] == metrics["train"]["loss"]
    rates = project.client().get_metric_history(run.info.run_id, "optim/lr")
    assert [(point.step, point.value) for point in rates] == [(r["step"], r["lr"]) for r in history]


def test_summary_names_what_matters(project: Project) -> None:
    lines = project.run("noam", "summary").stdout
    for expected in ("train loss", "after [bos]", "reports/index.html", "make ui"):
        assert expected in lines


def test_second_run_does_nothing_and_adds_no_run(project: Project) -> None:
    before = project.lock, len(project.runs())
    output = project.run("dvc", "repro").stdout
    assert stages_run(output) == []
    assert (project.lock, len(project.runs())) == before


def test_comment_and_tracking_address_rerun_nothing(project: Project) -> None:
    params = project.root / "params.yaml"
    text = params.read_text(encoding="utf-8")
    params.write_text(text.replace("# updates until", "# number of updates until"), encoding="utf-8")
    output = project.run("dvc", "repro", MLFLOW_TRACKING_URI="http://127.0.0.1:9").stdout
    params.write_text(text, encoding="utf-8")
    assert stages_run(output) == []


def test_forced_run_has_the_same_bytes_and_a_run_of_its_own(project: Project) -> None:
    before = project.lock, len(project.runs())
    assert stages_run(project.run("dvc", "repro", "-f").stdout) == STAGES
    assert project.lock == before[0]
    runs = project.runs()
    assert len(runs) == before[1] + 1
    assert runs[-1].data.tags["noam.execution"] != runs[-2].data.tags["noam.execution"]
    assert runs[-1].data.tags["noam.fingerprint"] == runs[-2].data.tags["noam.fingerprint"]
    assert runs[-1].info.run_name != runs[-2].info.run_name


def test_other_folder_and_environment_give_the_same_bytes(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Project(tmp_path_factory.mktemp("elsewhere") / "otro árbol")
    project.run("git", "clone", "-q", ".", str(other.root))
    other.run(
        "dvc",
        "repro",
        OMP_NUM_THREADS="2",
        PYTHONHASHSEED="7",
        LC_ALL="C",
        TZ="Asia/Tokyo",
        DISPLAY=":9",
    )
    assert len(other.runs()) == 1
    assert other.run("git", "status", "--porcelain").stdout == ""  # dvc.lock and metrics.json as they were committed


def test_seed_reruns_from_the_stage_that_uses_it(project: Project) -> None:
    project.set_params(seed=5)
    output = project.run("dvc", "repro").stdout
    assert stages_run(output) == ["train", "evaluate", "plots", "track"]
    project.set_params(seed=0)
    restored = project.run("dvc", "repro").stdout  # the first run's results come out of the run cache
    assert stages_run(restored) in ([], ["track"])


def test_nothing_tracked_names_this_machine(project: Project) -> None:
    """Neither a path of this run, nor the host's name, nor a run's id in anything that DVC or git tracks."""
    secrets = [str(project.root), os.uname().nodename, *(run.info.run_id for run in project.runs())]
    listed = project.run("git", "ls-files").stdout.splitlines()
    outputs = [out for stage in STAGES for out in project.outputs(stage)]
    files = [path for name in outputs for path in [project.root / name, *(project.root / name).rglob("*")]]
    for path in [*files, *(project.root / name for name in listed if not name.startswith("tests/"))]:
        if path.is_file():
            content = path.read_bytes()
            for secret in secrets:
                assert len(secret) < 9 or secret.encode() not in content, f"{path} holds {secret}"

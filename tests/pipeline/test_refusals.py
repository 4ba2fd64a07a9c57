"""What the pipeline refuses, and how it says so: one message, exit code not 0, the lock untouched."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.pipeline.project import ROOT, Project, clean_environment

pytestmark = pytest.mark.pipeline


@pytest.mark.parametrize(
    ("override", "shown"),
    [("warmup=0", "warmup = 0:"), ("warmup=", 'warmup = "":'), ("warmup=true", "warmup = true:")],
)
def test_impossible_override_is_refused_in_one_line(project: Project, override: str, shown: str) -> None:
    before = project.lock
    done = project.run("dvc", "exp", "run", "-S", override, check=False)
    project.run("git", "checkout", "-q", "--", "params.yaml")
    project.run("dvc", "checkout")
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert shown in line
    assert "whole number ≥ 1" in line
    assert "Traceback" not in done.stdout + done.stderr
    assert project.lock == before


def test_misspelt_override_is_refused_by_dvc(project: Project) -> None:
    done = project.run("dvc", "exp", "run", "-S", "warmpu=10", check=False)
    project.run("git", "checkout", "-q", "--", "params.yaml")
    assert done.returncode != 0
    assert "warmpu" in done.stderr


def test_misspelt_key_in_the_file_names_the_nearest(project: Project) -> None:
    params = project.root / "params.yaml"
    text = params.read_text(encoding="utf-8")
    params.write_text(text + "warmpu: 10\n", encoding="utf-8")
    done = project.run("dvc", "repro", check=False)
    params.write_text(text, encoding="utf-8")
    assert done.returncode != 0
    assert "warmpu: unknown key (did you mean 'warmup'?)" in done.stderr


def test_missing_corpus_names_the_path(project: Project) -> None:
    done = project.run("dvc", "exp", "run", "-S", "corpus=data/raw/nada.txt", check=False)
    project.run("git", "checkout", "-q", "--", ".")
    project.run("dvc", "checkout")
    assert done.returncode != 0
    assert "data/raw/nada.txt" in done.stderr


def test_edit_while_training_is_refused(fresh: Callable[..., Project]) -> None:
    """DVC hashes parameters after the command: without the guard the lock would name a value that never trained."""
    project = fresh(epochs=60)
    before = project.locked("train")
    process = project.start("dvc", "repro")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("train: update"):
            project.set_params(seed=77)
            break
    rest = process.communicate(timeout=120)[0]
    assert process.returncode != 0
    assert "stage train: params.yaml (seed) changed while the stage ran" in rest
    assert project.locked("train") == before
    (execution,) = (project.root / ".runstate/executions").iterdir()
    assert '"event": "failed"' in (execution / "journal.jsonl").read_text(encoding="utf-8")


def test_shallow_clone_is_refused_before_dvc_loses_the_result(
    fresh: Callable[..., Project], tmp_path_factory: pytest.TempPathFactory
) -> None:
    origin = fresh()
    origin.run("git", "commit", "-q", "--allow-empty", "-m", "one more")
    target = tmp_path_factory.mktemp("shallow") / "clone"
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", origin.root.as_uri(), str(target)], check=True, env=clean_environment()
    )
    clone = Project(target)
    done = clone.run("dvc", "exp", "run", "--temp", "-S", "epochs=2", check=False)
    assert "git fetch --unshallow" in done.stdout + done.stderr
    assert done.returncode != 0


def test_without_commit_the_pipeline_runs_and_says_unknown(fresh: Callable[..., Project]) -> None:
    project = fresh(epochs=2)
    project.run("git", "update-ref", "-d", "HEAD")
    project.run("dvc", "repro")
    (run,) = project.runs()
    assert run.data.tags["noam.git_dirty"] == "unknown"


def test_without_git_make_says_what_to_do_first(fresh: Callable[..., Project]) -> None:
    project = fresh()
    (project.root / ".git").rename(project.root / "no-git")
    done = project.run("make", "repro", check=False, GIT_CEILING_DIRECTORIES=str(project.root.parent))
    assert done.returncode != 0
    assert "git init && git add -A && git commit" in done.stderr


@pytest.mark.slow
def test_second_repro_at_the_same_time_gets_dvcs_message(fresh: Callable[..., Project]) -> None:
    project = fresh(epochs=60)
    first = project.start("dvc", "repro")
    time.sleep(6)
    second = project.run("dvc", "repro", check=False)
    output = first.communicate(timeout=200)[0]
    assert first.returncode == 0, output
    assert second.returncode != 0
    assert re.search(r"lock|busy", second.stderr)


def test_make_help_lists_every_public_target() -> None:
    output = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("repro", "test", "ui", "sync", "lint", "test-all"):
        assert re.search(rf"^  make {target} ", output, re.MULTILINE)

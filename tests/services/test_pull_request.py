"""The report on a pull request, of a real repository with two commits: results here, on a remote, and lost."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.pipeline.project import Project, copy_project

pytestmark = pytest.mark.services
LINK = "https://example.org/runs/1"


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project in which the warm-up was changed; the results of both commits are on a remote."""
    folder = tmp_path_factory.mktemp("changed")
    project = copy_project(folder / "my tree", epochs=3, eval_every=1, replicas=5, d_model=16, hidden=16)
    project.run("dvc", "remote", "add", "--default", "store", str(folder / "remote"))
    project.run("dvc", "repro", "evaluate")
    project.commit("before")
    project.set_params(warmup=10)
    project.run("dvc", "repro", "evaluate")
    project.commit("after")
    project.run("dvc", "push", "--all-commits")
    return project


@pytest.fixture
def clone(changed: Project, tmp_path: Path) -> Project:
    """As a runner of the platform checks it out: nothing in DVC's cache."""
    changed.run("git", "clone", "-q", str(changed.root), str(tmp_path / "clone"))
    return Project(tmp_path / "clone")


def report(project: Project, *arguments: str, head: str = "HEAD") -> str:
    script = os.fspath(ROOT / ".ci/pull_request_report.py")
    return project.run(sys.executable, script, "HEAD~1", head, *arguments).stdout


def section(text: str, title: str) -> str:
    return text.partition(f"### {title}\n")[2].partition("\n### ")[0]


def rows(text: str) -> dict[str, list[str]]:
    """The cells of a table, by the first one of each row."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {line[0].replace("\\", ""): line[1:] for line in lines}


def loss(project: Project, revision: str) -> float:
    """The loss in the metrics of a commit."""
    metrics = json.loads(project.run("git", "show", f"{revision}:reports/metrics.json").stdout)
    return float(metrics["train"]["loss"])


def test_results_come_from_the_remote_and_all_is_said(clone: Project, tmp_path: Path) -> None:
    text = report(clone, "--plots", str(tmp_path / "plots"), "--link", LINK)
    before, after = clone.run("git", "log", "--format=%h", "--abbrev=7", "-2").stdout.split()[::-1]
    assert text.startswith(f"## What changes in numbers from `{before}` to `{after}`\n")
    old, new = loss(clone, "HEAD~1"), loss(clone, "HEAD")
    assert old != new
    assert rows(section(text, "Metrics"))["train.loss"][:2] == [f"{old:.6g}", f"{new:.6g}"]
    assert rows(section(text, "Parameters")) == {
        "parameter": ["base", "head", "difference"],
        "---": ["---"] * 3,
        "warmup": ["40000", "10", "-39990"],
    }
    curves = rows(section(text, "Curves"))
    ends = curves["Loss without dropout"]
    assert (ends[0], ends[2]) == (f"{old:.6g}", f"{new:.6g}")
    assert "Learning rate of every update" in curves
    assert f"[the run]({LINK})" in text
    assert "history" in (tmp_path / "plots/index.html").read_text(encoding="utf-8")
    variants = rows(section(text, "Comparison").partition("<details>")[0])
    assert variants["warmup=40000"][:2] == ["5", f"{old:.4f}"]
    assert variants["warmup=10"][:2] == ["5", f"{new:.4f}"]
    assert "not in DVC's cache" not in text


def test_what_is_nowhere_is_named_and_the_rest_is_said(clone: Project, changed: Project, tmp_path: Path) -> None:
    clone.run("dvc", "remote", "modify", "--local", "store", "url", str(tmp_path / "empty"))
    text = report(clone, "--plots", str(tmp_path / "plots"), "--link", LINK)
    assert rows(section(text, "Metrics"))["train.loss"][0] == f"{loss(changed, 'HEAD~1'):.6g}"  # git has these
    assert "warmup" in rows(section(text, "Parameters"))
    lost = section(text, "Curves")
    assert "Not in DVC's cache here, nor on a remote: " in lost
    assert "`reports/history.json` of base" in lost
    assert "`reports/validation.json` of head" in lost
    assert "|" not in lost
    assert not (tmp_path / "plots").exists()
    assert "`noam compare` says nothing: reports/replicas.json" in section(text, "Comparison")


def test_a_remote_that_cannot_be_read_is_named_and_nothing_changed(clone: Project) -> None:
    clone.run(
        "dvc", "remote", "modify", "--local", "store", "url", "gs://nowhere/results"
    )  # which needs a package of its own
    text = report(clone, head="HEAD~1")
    assert "The remote cannot be read: gs " in text.partition("### Metrics")[0]
    assert "No metric changed." in text
    assert "No parameter changed." in text
    assert "`dvc plots diff` could not read base: " in section(text, "Curves")
    assert "`noam compare` says nothing: reports/replicas.json" in text


def test_a_commit_that_is_not_there_is_one_line(changed: Project) -> None:
    script = os.fspath(ROOT / ".ci/pull_request_report.py")
    for name in ("nowhere", "--all"):
        done = changed.run(sys.executable, script, "--", name, "HEAD", check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"error: {name}: no such commit here; a shallow clone needs `git fetch --unshallow`\n"

"""The shipped studies, at their small size, by the command that people type."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stages import files
from tests.pipeline.project import ROOT, Project, copy_project

QUICK = "post-norm-needs-warmup"
NAMES = sorted(path.stem for path in (ROOT / "data/studies").glob("*.yaml"))

pytestmark = pytest.mark.pipeline


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return copy_project(tmp_path_factory.mktemp("shipped") / "project")


def test_there_are_five() -> None:
    assert NAMES == ["lr-sensitivity", "optimizers", "post-norm-needs-warmup", "radam", "warmup-toy"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == QUICK else pytest.mark.slow) for name in NAMES]
)
def test_its_small_size_runs_and_shows_what_is_expected(shipped: Project, name: str) -> None:
    done = shipped.run(sys.executable, "-m", "stages.cli", "study", "run", name, "--smoke")
    folder = shipped.root / "reports/studies" / f"{name}-smoke"
    results = files.read_json(folder / "results.json")
    assert results["expectations"]
    assert [one for one in results["expectations"] if one["held"] is not True] == []
    assert results["winner"] == ""  # two seeds are too few for any
    assert {path.name for path in folder.iterdir()} >= {"index.html", "report.md", "results.csv", "members.json"}
    assert "Traceback" not in done.stdout + done.stderr
    assert f"MLflow: study {name}-smoke" in done.stdout
    members = files.read_json(folder / "members.json")
    listed = shipped.run("dvc", "exp", "list", "--name-only").stdout.split()
    assert members
    assert {member["experiment"] for member in members} <= set(listed)


def test_the_committed_reports_are_of_the_shipped_studies() -> None:
    """Numbers of the README: each study's question and expectations are those of its file."""
    from stages.studies.spec import load_study

    reports: list[Path] = sorted((ROOT / "reports/studies").glob("*/results.json"))
    assert [path.parent.name for path in reports] == NAMES
    for path in reports:
        study = load_study(ROOT / "data/studies" / f"{path.parent.name}.yaml")
        results = files.read_json(path)
        assert results["question"]["text"] == study.question
        assert len(results["expectations"]) == len(study.expectations)

"""`noam compare`: experiments of DVC and runs of MLflow, made by a study and by hand."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.cli import main
from tests.pipeline.project import Project
from tests.studies.running import experiments

pytestmark = pytest.mark.pipeline

Answer = tuple[int, str, str]
TEN, FORTY = "small-warmup-10", "small-warmup-40"


@pytest.fixture(scope="module")
def mixed(studied: Project, by_hand: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The study's experiments, and one that somebody made of the same parameters as one of them, under another name."""
    folder = tmp_path_factory.mktemp("mixed") / "my tree"
    shutil.copytree(studied.root, folder, symlinks=True)
    project = Project(folder)
    project.run("git", "fetch", "-q", str(by_hand.root), "refs/exps/*:refs/exps/*")
    shutil.copytree(by_hand.root / ".dvc/cache", folder / ".dvc/cache", dirs_exist_ok=True)
    return project


@pytest.fixture
def compare(
    mixed: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """Runs `noam compare …` there, with the code under test."""

    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "DVC_"))]:
        monkeypatch.delenv(name)  # MLflow leaves the address of a store that an earlier test opened

    def run(*arguments: str) -> Answer:
        monkeypatch.chdir(mixed.root)
        monkeypatch.setattr(sys, "argv", ["noam", "compare", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return (int(end.value.code or 0), *capsys.readouterr())

    return run


def losses(project: Project, name: str) -> list[float]:
    """Of the seeds of an experiment, as DVC has them."""
    shown = project.run("git", "show", f"{experiments(project)[name]}:dvc.lock").stdout
    (md5,) = {line.split()[1] for line in shown.partition("path: reports/replicas.json")[2].splitlines()[2:3]}
    content = json.loads((project.root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]).read_text(encoding="utf-8"))
    return [one["train"]["loss"] for one in content]


def means(out: str) -> dict[str, float]:
    return {one["variant"]: one["mean"] for one in json.loads(out)["variants"]}


def test_two_experiments_by_name(compare: Callable[..., Answer], mixed: Project) -> None:
    code, out, err = compare(TEN, FORTY, "--json")
    assert (code, err) == (0, "")
    assert means(out) == {
        f"warmup={warmup}": pytest.approx(sum(losses(mixed, f"small-warmup-{warmup}")) / 2) for warmup in (10, 40)
    }
    assert json.loads(out)["question"]["baseline"] == "warmup=10"


def test_all_experiments_by_default_those_of_a_study_and_others(compare: Callable[..., Answer], mixed: Project) -> None:
    assert "typed" in experiments(mixed)
    code, out, err = compare("--group", "warmup", "--baseline", "warmup=4e1", "--json")
    assert code == 0
    lines = err.splitlines()
    assert lines[0].startswith("note: HEAD left out: ")  # no results of it in this cache
    assert lines[1:] == ["note: 2 run(s) left out: a later one has the same variant and seed"]
    assert means(out) == means(compare(TEN, FORTY, "--json")[1])
    assert json.loads(out)["question"]["baseline"] == "warmup=40"


def test_runs_of_the_store_give_the_same(compare: Callable[..., Answer], mixed: Project) -> None:
    ids = [run.info.run_id for run in mixed.runs() if run.data.params.get("warmup") == "10" and "seed" in run.data.tags]
    code, out, _ = compare("--store", "--json")
    assert code == 0
    assert means(out) == pytest.approx(means(compare(TEN, FORTY, "--json")[1]))
    code, out, err = compare(*ids, FORTY, "--json")
    assert (code, err) == (0, "")
    assert means(out) == pytest.approx(means(compare(TEN, FORTY, "--json")[1]))


def test_a_study_by_its_file_and_in_every_form(compare: Callable[..., Answer], tmp_path: Path) -> None:
    code, out, _ = compare("--study", "small.yaml", "--json", "--out", str(tmp_path / "told"))
    assert code == 0
    assert means(out) == means(compare(TEN, FORTY, "--json")[1])
    assert (tmp_path / "told/index.html").is_file()
    rows = list(csv.DictReader(compare("--study", "small.yaml", "--csv")[1].splitlines()))
    assert {row["variant"] for row in rows} == {"warmup=10", "warmup=40"}
    assert "warmup=10" in compare("--study", "small.yaml", "--markdown")[1]
    assert compare("--study", "small.yaml")[1].startswith("small\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("smal-warmup-10",), "smal-warmup-10: no such experiment, commit or run (did you mean 'small-warmup-10'?)"),
        (("0" * 32,), "no run 00000000000000000000000000000000"),
        ((TEN, "typed"), "command line: 2 run(s) that differ in nothing that matters but their seeds"),
        ((TEN, FORTY, "--where", "warmup=11"), "command line: no run with warmup=11 among 2"),
        ((TEN, FORTY, "--where", "wramup=10"), "--where wramup: no such parameter (did you mean 'warmup'?)"),
        ((TEN, FORTY, "--group", "lr"), "the runs differ in more than lr: warmup (10, 40)"),
        ((TEN, FORTY, "--baseline", "warmup=11"), "--baseline warmup=11: expected one of warmup=10; warmup=40"),
        ((TEN, FORTY, "--metric", "train.lsos"), "metric: train.lsos: no such measure in reports/replicas.json"),
        (("--study", "small.yaml", "--metric", "train.loss"), "--metric: not with --study, whose file says"),
        ((TEN, "--study", "small.yaml"), "RUN: not with --study, whose file says what is compared"),
        (("--smoke",), "--smoke: only with --study"),
    ],
)
def test_what_cannot_be_compared_is_told_in_a_line(
    compare: Callable[..., Answer], arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = compare(*arguments)
    assert (code, out) == (1, "")
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1

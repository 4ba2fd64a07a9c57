"""`noam` where there is no project, and with a model from elsewhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Answer, Lab


@pytest.fixture
def noam_in(monkeypatch: pytest.MonkeyPatch, noam: Callable[..., Answer]) -> Callable[..., Answer]:
    """As `noam`, in the folder that comes first."""

    def run(folder: Path, *arguments: str) -> Answer:
        monkeypatch.chdir(folder)
        return noam(*arguments)

    return run


@pytest.mark.parametrize(
    "command",
    ["summary", "sync", "ui", "doctor", "verify", "compare", "compare --store", "study run x", "lr-find",
     "predict el", "generate", "score -", "serve"],
)  # fmt: skip
def test_outside_a_project_one_line_says_what_to_do_and_nothing_is_left(
    noam_in: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in ("MLFLOW_TRACKING_URI", "DVC_ROOT"):
        monkeypatch.delenv(name, raising=False)
    code, out, err = noam_in(tmp_path, *command.split())
    assert (code, out) == (1, "")
    name = command.split()[0]
    needs = (
        f"error: {tmp_path}: no dvc.yaml here, which `noam {name}` needs; clone a project's repository and run it there"
    )
    assert err.startswith(needs)
    assert err.count("\n") == 1
    assert ("--model FOLDER" in err) == (name in ("predict", "generate", "score", "serve"))
    assert list(tmp_path.iterdir()) == []


def test_in_a_folder_of_a_project_its_top_is_named(
    noam_in: Callable[..., Answer], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    code, _, err = noam_in(lab.folder / "data/raw", "sync")
    assert code == 1
    assert err.endswith(f"; run it in {lab.folder}\n")
    assert not (lab.folder / "data/raw/mlflow.db").exists()


def test_a_model_of_another_folder_answers_as_at_home(
    noam_in: Callable[..., Answer], trained: Lab, tmp_path: Path
) -> None:
    home = noam_in(trained.folder, "predict", "el perro", "--json")[1]
    assert json.loads(home)["next"]
    assert noam_in(tmp_path, "predict", "el perro", "--json", "--model", str(trained.folder / "data/model"))[1] == home
    saved = tmp_path / "saved/artifacts/model"  # as MLflow saves it
    shutil.copytree(trained.folder / "data/model", saved)
    (tmp_path / "saved/MLmodel").touch()
    code, _, err = noam_in(tmp_path, "predict", "el perro", "--model", "saved")
    assert (code, err.splitlines()[0][:33]) == (1, "error: data/vocab/vocab.json: not")
    shutil.copy(trained.folder / "data/vocab/vocab.json", saved)
    assert noam_in(tmp_path, "predict", "el perro", "--json", "--model", "saved")[1] == home
    text = tmp_path / "text.txt"
    text.write_text("el perro come\n", encoding="utf-8")
    for command in (("generate", "el", "--seed", "3"), ("score", str(text))):
        code, out, _ = noam_in(tmp_path, *command, "--model", "saved")
        assert (code, out) == (0, noam_in(trained.folder, *command)[1])


def test_a_folder_without_a_model_is_named(noam_in: Callable[..., Answer], tmp_path: Path) -> None:
    code, _, err = noam_in(tmp_path, "predict", "el", "--model", "nowhere")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("error: nowhere/config.json: not there")

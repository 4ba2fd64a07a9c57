"""Numbers that are no longer those of what lies here are told from those that are."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stages.analysis import freshness
from tests.conftest import Lab


@pytest.fixture(scope="module")
def recorded(_trained: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with its numbers, recorded by DVC itself."""
    folder = tmp_path_factory.mktemp("recorded") / "lab"
    shutil.copytree(_trained.folder, folder)
    for command in (["init", "--no-scm", "--quiet"], ["commit", "--force", "--quiet", *freshness._STAGES]):
        done = subprocess.run([sys.executable, "-m", "dvc", *command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def fresh(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "lab"
    shutil.copytree(recorded, folder, ignore=shutil.ignore_patterns(".dvc"))
    monkeypatch.chdir(folder)
    return folder


def set_param(old: str, new: str) -> None:
    path = Path("params.yaml")
    text = path.read_text(encoding="utf-8")
    assert text.count(f"\n{old}\n") == 1
    path.write_text(text.replace(f"\n{old}\n", f"\n{new}\n"), encoding="utf-8")


def test_what_dvc_recorded_is_fresh(fresh: Path) -> None:
    assert freshness.outdated() == []


def test_another_value_is_named_and_another_spelling_is_none(fresh: Path) -> None:
    set_param("epochs: 3", "epochs: '3e0'")
    assert freshness.outdated() == []
    set_param("epochs: '3e0'", "epochs: 4")
    set_param("seed: 0", "seed: 1")
    assert freshness.outdated() == ["params.yaml (epochs, seed)"]


def test_parameters_of_later_stages_have_no_part_in_the_numbers(fresh: Path) -> None:
    set_param("rate_d_model: 256", "rate_d_model: 128")
    assert freshness.outdated() == []


@pytest.mark.parametrize("content", ["epochs: none", "epochs: [1", "nonsense: 3"])
def test_a_broken_file_of_parameters_is_named(fresh: Path, content: str) -> None:
    set_param("epochs: 3", content)
    assert freshness.outdated() == ["params.yaml"]


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("stages/train.py", "stages/train.py"),
        ("data/raw/notebook.txt", "data/raw/notebook.txt"),
        ("data/model/config.json", "data/model"),
        ("data/model/more.json", "data/model"),
        ("reports/metrics.json", "reports/metrics.json"),
    ],
)
def test_a_change_of_content_is_named(fresh: Path, path: str, named: str) -> None:
    target = fresh / path
    content = target.read_bytes() if target.exists() else b"x"
    target.write_bytes(content[:-1] + b"?")  # of the same length
    assert freshness.outdated() == [named]


def test_a_change_of_time_alone_is_none(fresh: Path) -> None:
    for path in fresh.rglob("*.*"):
        path.touch()
    assert freshness.outdated() == []


def test_a_model_that_is_being_trained_anew_is_named(fresh: Path) -> None:
    shutil.rmtree(fresh / "data/model")
    assert freshness.outdated() == ["data/model"]


@pytest.mark.parametrize("hashed", [0, 10**9])
def test_a_model_that_was_made_since_is_named(fresh: Path, monkeypatch: pytest.MonkeyPatch, hashed: int) -> None:
    """As after `dvc repro train`: its record is new, that of the numbers is not; however large it is."""
    monkeypatch.setattr(freshness, "_HASHED_BYTES", hashed)
    path = fresh / "dvc.lock"
    lock = yaml.safe_load(path.read_text(encoding="utf-8"))
    (entry,) = [dep for dep in lock["stages"]["evaluate"]["deps"] if dep["path"] == "data/model"]
    entry["md5"] = "0" * 32 + ".dir"
    path.write_text(yaml.safe_dump(lock), encoding="utf-8")
    assert freshness.outdated() == ["data/model"]


def test_of_what_is_too_large_the_size_is_compared(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "_HASHED_BYTES", 10)
    weights = fresh / "data/model/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert freshness.outdated() == []
    weights.write_bytes(weights.read_bytes() + b"?")
    assert freshness.outdated() == ["data/model"]


@pytest.mark.parametrize("content", [None, "", "[]", "stages: {}", "stages: {train: {}}", "{", "\x00"])
def test_without_a_record_there_is_nothing_to_compare_with(fresh: Path, content: str | None) -> None:
    path = fresh / "dvc.lock"
    path.unlink()
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert freshness.outdated() == []

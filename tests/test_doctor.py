"""What interrupted runs left behind: listed, and removed unless it is in use. What a move broke: said, and mended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from configobj import ConfigObj

from stages.doctor import doctor
from stages.execution import Execution
from stages.training.checkpoint import Checkpoint
from stages.training.kept import left_behind
from stages.training.records import Update

INPUTS = {"params.yaml (warmup)": 400, "params.yaml (seed)": 3, "stages/train.py": "0123"}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    return tmp_path


def interrupted(inputs: dict[str, object]) -> Checkpoint:
    checkpoint = Checkpoint(inputs)
    checkpoint.claim("some-execution")
    updates = [Update(step, 1, 0.1, 2.0, 1.0) for step in range(1, 8)]
    checkpoint.save({"weights.w": torch.ones(3)}, {"session": {}}, updates)
    return checkpoint


def test_nothing_is_left_behind(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(clean=False) == 0
    assert capsys.readouterr().out == "nothing was left behind\n"


def test_an_interrupted_run_is_listed_with_where_it_stopped_and_what_it_was(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(INPUTS).release()
    doctor(clean=False)
    said = capsys.readouterr().out
    assert "interrupted after update 7 (warmup 400, seed 3)" in said
    assert "in use" not in said.splitlines()[0]
    assert "noam doctor --clean" in said


def test_clean_removes_what_nobody_uses_and_nothing_else(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    interrupted(INPUTS).release()
    used = interrupted({**INPUTS, "params.yaml (seed)": 4})
    try:
        doctor(clean=True)
        assert "in use" in capsys.readouterr().out
        left = sorted(path.name for path in (workspace / ".runstate" / "checkpoints").iterdir())
        assert left == [used.folder.name, f"{used.folder.name}.lock"]
        assert used.load() is not None
    finally:
        used.release()
    doctor(clean=True)
    assert not list((workspace / ".runstate" / "checkpoints").iterdir())


def test_a_damaged_checkpoint_is_listed_and_removed_too(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = interrupted(INPUTS)
    checkpoint.release()
    (checkpoint.folder / "state.safetensors").write_bytes(b"\x80\x04 no checkpoint")
    (checkpoint.folder / "about.json").write_text("[]", encoding="utf-8")
    doctor(clean=True)
    assert "removed: " in capsys.readouterr().out
    assert not checkpoint.folder.exists()


def test_an_execution_without_an_end_is_named(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    execution = Execution.create("trained", {"seed": 1})
    record = execution.record
    gone = record.trainer.model_copy(update={"created": 1.0})
    (execution.folder / "execution.json").write_text(
        record.model_copy(update={"trainer": gone, "owner": gone}).model_dump_json(), encoding="utf-8"
    )
    doctor(clean=False)
    assert f"{execution.id}: ended without a word" in capsys.readouterr().out


# -- a project that was moved ------------------------------------------------------------------------------------------


@pytest.fixture
def moved(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an interrupted run, an execution under way and settings of DVC, in its new folder."""
    old = workspace / "the old one"
    (old / ".dvc/cache").mkdir(parents=True)
    (old / ".dvc/config.local").write_text(
        f"[core]\nremote = here\n[cache]\ndir = {old}/.dvc/cache\n['remote \"here\"']\nurl = {old}/remote ñ\n",
        encoding="utf-8",
    )
    (old / "remote ñ").mkdir()
    monkeypatch.chdir(old)
    interrupted(INPUTS).release()
    Execution.create("trained", {"seed": 1}).make_current()
    new = workspace / "más ruido"
    old.rename(new)
    monkeypatch.chdir(new)
    return new


def test_a_move_is_said_and_mended(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in moved.rglob("*") if path.is_file()}
    assert doctor() == 1
    said = capsys.readouterr().out
    assert said.count("to be mended: ") == 4
    assert "`noam doctor --fix`" in said
    assert {path: path.read_bytes() for path in moved.rglob("*") if path.is_file()} == before
    assert Execution.current() is None

    assert doctor(fix=True) == 0
    said = capsys.readouterr().out
    assert said.count("mended: ") == 4
    assert f".dvc/config.local: cache dir = {moved.parent}/the old one/.dvc/cache, now {moved}/.dvc/cache" in said
    assert (execution := Execution.current()) is not None
    assert execution.record.params == {"seed": 1}
    assert left_behind({**INPUTS, "params.yaml (warmup)": 3}) == (7, ["params.yaml (warmup)"])
    settings = ConfigObj(str(moved / ".dvc/config.local"), encoding="utf-8")
    assert settings["cache"]["dir"] == f"{moved}/.dvc/cache"
    assert settings['remote "here"']["url"] == f"{moved}/remote ñ"
    assert settings["core"]["remote"] == "here"
    assert doctor() == 0
    assert "mended" not in capsys.readouterr().out


def test_what_cannot_be_mended_is_named(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (moved / ".dvc/cache").rmdir()
    (moved / "data").mkdir()
    (moved / "data/model").symlink_to("/no/such/cache")
    (moved / ".venv").mkdir()
    (moved / ".venv/pyvenv.cfg").write_text(
        "home = /usr/bin\ncommand = python -m venv /the/old/.venv\n", encoding="utf-8"
    )
    assert doctor(fix=True) == 1
    said = capsys.readouterr().out
    assert f"a former folder of this project; {moved}/.dvc/cache is not there" in said
    assert "data/model: a link to /no/such/cache, which is not there; `dvc checkout --relink`" in said
    assert ".venv was made as /the/old/.venv; `make setup`" in said


def test_damage_is_named_and_not_touched(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(fix=True, damage=["mlflow.db is damaged"]) == 1
    assert capsys.readouterr().out == "damaged: mlflow.db is damaged\n"

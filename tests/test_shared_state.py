"""A run state that several machines share: NOAM_RUNSTATE, and what can be known of the processes of others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from stages import files, paths
from stages.execution import Execution, Process
from stages.training import checkpoint
from stages.training.checkpoint import Checkpoint
from stages.training.kept import is_in_use
from tests.conftest import Lab

INPUTS = {"seed": 1}


@pytest.fixture
def shared_state(small_lab: Lab, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere") / "state"
    monkeypatch.setenv("NOAM_RUNSTATE", str(folder))
    return folder


def test_a_folder_takes_the_place_of_the_run_state(shared_state: Path, small_lab: Lab) -> None:
    assert paths.run_state() == shared_state
    small_lab.run("prepare", "vocab", "train")
    assert len(list(shared_state.glob("executions/*/journal.jsonl"))) == 1
    assert not (small_lab.folder / ".runstate").exists()
    (shared_state / "checkpoints/0123-left").mkdir(parents=True)
    done = small_lab.command("stages.cli", "doctor")
    assert f"{shared_state}/checkpoints/0123-left: an empty folder" in done.stdout


def test_a_relative_one_is_in_the_main_workspace(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOAM_RUNSTATE", "state")
    assert paths.run_state() == lab.folder.resolve() / "state"
    monkeypatch.setenv("NOAM_RUNSTATE", "")
    assert paths.run_state() == lab.folder.resolve() / ".runstate"


def test_a_process_of_another_machine_is_not_one_of_this(shared_state: Path) -> None:
    here = Process.of(psutil.Process())
    assert here.alive()
    assert not here.model_copy(update={"node": "another"}).alive()
    assert here.model_copy(update={"node": ""}).alive()  # of an earlier version


def test_an_execution_on_another_machine_is_under_way_until_nothing_is_written_for_long(shared_state: Path) -> None:
    execution = Execution.create("trained", {"seed": 1})
    record = files.read_json(execution.folder / "execution.json")
    record["trainer"] |= {"node": "another", "pid": 1, "created": 1.0}
    files.write_json(execution.folder / "execution.json", record)
    assert execution.alive()
    long_ago = time.time() - 2 * 3600
    os.utime(execution.folder / "execution.json", (long_ago, long_ago))
    assert not execution.alive()


def test_a_lock_that_nobody_sets_free_is_waited_for_and_then_done_without(
    shared_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a machine which is gone; where others share the folder only."""
    monkeypatch.setattr(checkpoint, "PATIENCE", 0.4)
    held = Checkpoint(INPUTS)
    begun = time.monotonic()
    second = Checkpoint(INPUTS)
    assert time.monotonic() - begun > 0.3
    assert second.folder != held.folder
    assert not second.alone
    second.folder.mkdir(parents=True)
    assert is_in_use(second.folder)
    theirs = second.folder.with_name(f"{held.folder.name}-{os.getpid()}-another")
    theirs.mkdir()
    assert is_in_use(theirs)
    days_ago = time.time() - 3 * 86400
    os.utime(theirs, (days_ago, days_ago))
    assert not is_in_use(theirs)
    held.release()
    assert Checkpoint(INPUTS).folder == held.folder

"""Executions and their journals: what is written down, and what is made of it after a crash."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from stages.execution import Execution, Journal, Process, start_follower
from stages.params import Params
from stages.paths import in_temporary_experiment, main_root
from stages.repository import git_state
from tests.conftest import Lab

PARAMS = Params().model_dump()


def git(*arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def test_a_record_says_what_was_started(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_EXP_NAME", "brave-gato")
    before = time.time_ns() // 1_000_000
    record = Execution.create("trained", PARAMS | {"seed": 5}).record
    assert (record.kind, record.seed, record.experiment) == ("trained", 5, "brave-gato")
    assert record.params == PARAMS | {"seed": 5}
    assert before <= record.started <= time.time_ns() // 1_000_000
    assert (record.commit, record.dirty) == ("unknown", "unknown")
    assert record.workspace == str(lab.folder.resolve())
    assert record.trainer.pid == os.getpid()
    assert record.host.startswith(platform.system())
    assert platform.node() not in record.host
    assert Execution.create("restored", PARAMS, started=7).record.started == 7


def test_executions_are_listed_oldest_first_and_only_whole_ones(lab: Lab) -> None:
    made = [Execution.create("trained", PARAMS) for _ in range(3)]
    (lab.folder / ".runstate/executions/20000101-000000-aaaaaaaa").mkdir()
    assert sorted(execution.id for execution in made) == [execution.id for execution in Execution.all()]


def test_a_journal_gives_back_what_was_logged(lab: Lab) -> None:
    execution = Execution.create("trained", PARAMS)
    assert list(execution.entries()) == []
    before = time.time_ns() // 1_000_000
    with Journal(execution) as journal:
        journal.log(0, {"eval/train_loss": 2.5})
        journal.log(1, {"train/loss": 2.25, "optim/lr": 1e-8})
    execution.append_event("failed", "año\nnuevo")
    found = list(execution.entries())
    assert [(entry["s"], entry["m"]) for entry in found[:2]] == [
        (0, {"eval/train_loss": 2.5}),
        (1, {"train/loss": 2.25, "optim/lr": 1e-8}),
    ]
    assert (found[2]["event"], found[2]["message"]) == ("failed", "año\nnuevo")
    assert execution.events() == found[2:]
    times = [entry["t"] for entry in found]
    assert before <= times[0] <= times[1] <= times[2] <= time.time_ns() // 1_000_000


def test_a_line_cut_short_is_left_out_and_what_follows_is_read(lab: Lab) -> None:
    execution = Execution.create("trained", PARAMS)
    whole = json.dumps({"s": 1, "t": 1, "m": {}}) + "\n"
    execution.journal_path.write_text(whole + '{"s": 2, "t"', encoding="utf-8")
    assert [entry["s"] for entry in execution.entries()] == [1]
    with open(execution.journal_path, "a", encoding="utf-8") as journal:
        journal.write("\n" + whole)
    assert [entry["s"] for entry in execution.entries()] == [1, 1]
    execution.journal_path.write_text(whole + whole.rstrip("\n"), encoding="utf-8")  # still being written
    assert [entry["s"] for entry in execution.entries()] == [1]


def test_a_resumed_one_goes_on_as_if_it_had_not_ended(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_EXP_NAME", "first")
    execution = Execution.create("trained", PARAMS, environment={"torch": "2.13.0"})
    began = execution.record
    for event, message in (("diverged", "at update 3"), ("killed", "stopped by SIGTERM")):
        execution.append_event(event, message)
    dead = began.model_copy(update={"trainer": began.trainer.model_copy(update={"created": 0.0})})
    (execution.folder / "execution.json").write_text(dead.model_dump_json(), encoding="utf-8")
    assert execution.ended()

    monkeypatch.setenv("DVC_EXP_NAME", "second")
    execution.resume()
    assert (execution.end(), execution.events()) == (None, [])
    assert not execution.ended()
    record = execution.record
    assert record.trainer == Process.of(psutil.Process())
    assert record.experiment == "second"
    kept = ("id", "started", "params", "environment", "kind", "commit")
    assert [getattr(record, key) for key in kept] == [getattr(began, key) for key in kept]
    execution.append_event("finished")
    assert [entry["event"] for entry in execution.entries()] == ["diverged", "killed", "resumed", "finished"]
    assert execution.end() == execution.events()[0]

    monkeypatch.delenv("DVC_EXP_NAME")
    execution.resume()
    assert execution.record.experiment == "second"


def test_the_last_end_counts(lab: Lab) -> None:
    execution = Execution.create("trained", PARAMS)
    execution.append_event("killed", "found so")
    execution.append_event("finished")
    end = execution.end()
    assert end is not None
    assert end["event"] == "finished"


@pytest.mark.parametrize("lines", [0, 2, 4])
def test_what_a_resumed_run_logs_again_is_in_the_journal_once(lab: Lab, lines: int) -> None:
    """Four lines were logged, the last checkpoint was after `lines`; the fifth was cut by the crash."""
    execution = Execution.create("trained", PARAMS)
    with Journal(execution) as journal:
        for step in range(1, 5):
            journal.log(step, {"train/loss": step / 8})
    before = execution.journal_path.read_bytes()
    with open(execution.journal_path, "ab") as file:
        file.write(b'{"s": 5, "t": 17')
    execution.resume()
    with Journal(execution, lines) as journal:
        for step in range(lines + 1, 8):
            journal.log(step, {"train/loss": step / 8})
    assert execution.journal_path.read_bytes().startswith(before)
    assert [entry["s"] for entry in execution.entries() if "m" in entry] == list(range(1, 8))
    assert [entry["m"]["train/loss"] for entry in execution.entries() if "m" in entry] == [n / 8 for n in range(1, 8)]


def test_a_journal_that_lost_lines_has_those_after_the_checkpoint(lab: Lab) -> None:
    """The machine went down: what the checkpoint counts on is there, what came after it may not be."""
    execution = Execution.create("trained", PARAMS)
    with Journal(execution) as journal:
        for step in range(1, 4):
            journal.log(step, {"train/loss": 1.0})
        journal.sync()
    execution.resume()
    with Journal(execution, 3) as journal:
        journal.log(4, {"train/loss": 1.0})
        assert journal.lines == 4
    assert [entry["s"] for entry in execution.entries() if "m" in entry] == [1, 2, 3, 4]


def test_replicas_belong_to_an_execution(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Execution.create("trained", PARAMS)
    assert group.replicas() == []
    other = group.record.owner.model_copy(update={"created": 1.0})
    record = group.record.model_copy(update={"owner": other})
    (group.folder / "execution.json").write_text(record.model_dump_json(), encoding="utf-8")
    made = [Execution.create("trained", PARAMS | {"seed": seed}, parent=group.id) for seed in (4, 5)]
    for replica in (*made, made[0]):
        group.add_replica(replica)
    assert [one.id for one in group.replicas()] == [one.id for one in made]
    assert [one.record.parent for one in made] == [group.id, group.id]
    assert made[0].record.owner == other  # that of its group, whose `dvc` it is

    later = Execution.create("trained", PARAMS)
    made[1].append_event("killed")
    made[1].resume(later.id)
    assert made[1].record.parent == later.id
    shutil.rmtree(made[0].folder)
    assert [one.id for one in group.replicas()] == [made[1].id]
    assert Execution.find("") is None
    assert Execution.find(made[0].id) is None


@pytest.mark.parametrize("event", ["failed", "killed", "finished"])
def test_an_execution_is_open_until_it_is_closed(lab: Lab, event: str) -> None:
    assert Execution.current() is None
    execution = Execution.create("trained", PARAMS)
    execution.make_current()
    current = Execution.current()
    assert current is not None
    assert current.id == execution.id
    execution.append_event("trained")
    assert not execution.ended()
    execution.close(event)
    assert execution.ended()
    assert Execution.current() is None
    assert [entry["event"] for entry in execution.events()] == ["trained", event]


def test_one_that_was_left_behind_was_killed(lab: Lab) -> None:
    first, second = Execution.create("trained", PARAMS), Execution.create("trained", PARAMS)
    first.make_current()
    second.make_current()
    assert [entry["event"] for entry in first.events()] == ["killed"]
    second.make_current()
    assert second.events() == []


def test_each_workspace_has_its_own(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    Execution.create("trained", PARAMS).make_current()
    temporary = lab.folder / ".dvc/tmp/exps/tmpabc"
    temporary.mkdir(parents=True)
    monkeypatch.chdir(temporary)
    assert in_temporary_experiment()
    assert main_root() == lab.folder.resolve()
    assert Execution.current() is None
    other = Execution.create("trained", PARAMS)
    other.make_current()
    assert other.folder.is_relative_to(lab.folder.resolve() / ".runstate")
    assert len(Execution.all()) == 2


@pytest.mark.parametrize("root", ["", ".dvc/tmp/exps/tmpabc"])
def test_the_main_workspace_is_where_dvc_says(lab: Lab, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_ROOT", str(lab.folder / root))
    monkeypatch.chdir("/")
    assert main_root() == lab.folder.resolve()


def test_a_process_is_told_from_a_later_one_with_its_number(lab: Lab) -> None:
    me = Process.of(psutil.Process())
    assert me.alive()
    assert Execution.create("trained", PARAMS).alive()
    assert not me.model_copy(update={"created": me.created - 60}).alive()
    child = subprocess.Popen(["sleep", "60"])
    process = Process.of(psutil.Process(child.pid))
    assert process.alive()
    child.kill()
    child.wait()
    assert not process.alive()


def test_no_follower_where_it_is_turned_off(lab: Lab) -> None:
    execution = Execution.create("trained", PARAMS)
    start_follower(execution)
    assert [path.name for path in execution.folder.iterdir()] == ["execution.json"]


def test_states_of_git(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_state() == ("unknown", "unknown")
    git("init", "-q")
    assert git_state() == ("unknown", "unknown")
    Path("dvc.lock").write_text("1\n", encoding="utf-8")
    git("add", "params.yaml", "dvc.lock")
    git("commit", "-q", "-m", "one")
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert git_state() == (head, "no")  # untracked files do not count
    Path("dvc.lock").write_text("2\n", encoding="utf-8")
    assert git_state() == (head, "no")  # nor does what the run itself writes
    lab.set(warmup=7)
    assert git_state() == (head, "yes")
    monkeypatch.setenv("DVC_EXP_BASELINE_REV", "a" * 40)
    assert git_state() == ("a" * 40, "yes")
    monkeypatch.setenv("PATH", "/nowhere")
    assert git_state() == ("unknown", "unknown")

"""A journal in MLflow: each step once, whatever was killed and repeated; the right status and names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stages import files, paths
from stages.execution import Execution, Journal
from stages.params import Params, load_params
from stages.tracking import outbox
from stages.tracking.fingerprint import fingerprint_of_folder
from stages.tracking.journal import read_from
from stages.tracking.names import name_for_mlflow, param_values, run_name
from stages.tracking.replay import Replay
from stages.tracking.store import Store, connect
from stages.tracking.sync import Account, sync_executions, sync_one
from tests.tracking.lab import (
    ENVIRONMENT,
    history,
    journalled,
    only_run,
    run_stage,
    train_execution,
    write_results,
)

SLOW_REPLAY = """
import sys, time
from pathlib import Path
from stages.execution import Execution
from stages.tracking import replay
from stages.tracking.store import connect
replay._BATCH = 20
def tell(what):
    print("batch", flush=True)
    time.sleep(0.2)
replay.Replay.open(connect(), Execution(Path(sys.argv[1])), tell).metrics()
"""


def test_replayed_again_nothing_changes(store: Store, execution: Execution) -> None:
    for _ in range(3):
        Replay.open(store, execution).metrics()
    run = only_run(store)
    for key in ("train/loss", "optim/lr", "window/loss_max", "eval/train_loss"):
        assert history(store, run, key) == journalled(execution, key) != []


def test_killed_twice_and_repeated_each_step_is_there_once(store: Store, execution: Execution) -> None:
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", SLOW_REPLAY, str(execution.folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["batch\n"] * 3
        process.kill()
        process.communicate()
    Replay.open(store, execution).metrics()

    run = only_run(store)
    for key in ("train/loss", "optim/lr", "optim/grad_norm"):
        assert history(store, run, key) == journalled(execution, key)


def test_the_rate_at_step_t_is_the_one_that_update_t_used(store: Store, execution: Execution) -> None:
    Replay.open(store, execution).metrics()
    used = [(record["step"], record["lr"]) for record in files.read_json(paths.HISTORY)]
    logged = [(step, value) for step, value, _ in history(store, only_run(store), "optim/lr")]
    assert logged == used
    assert logged[0][0] == 1


def test_a_journal_that_grows_and_a_line_that_was_cut(store: Store, workspace: Path) -> None:
    execution = Execution.create("trained", load_params(Params).model_dump())
    replay = Replay.open(store, execution)
    with open(execution.journal_path, "a", encoding="utf-8") as journal:
        journal.write('{"s": 1, "t": 1000, "m": {"train/loss": 3.0}}\n{"s": 2, "t": 2000, "m"')
        journal.flush()
        assert replay.metrics()
        assert not replay.metrics()
        journal.write('garbage\n{"s": 3, "t": 3000, "m": {"train/loss": 2.0}}\n')
        journal.flush()
        assert replay.metrics()
    assert history(store, only_run(store), "train/loss") == [(1, 3.0, 1000), (3, 2.0, 3000)]


def test_reading_stops_at_the_last_whole_line(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    assert read_from(file, 0) == ([], 0)
    file.write_bytes('{"event": "é"}\n{"s": 1'.encode())
    assert read_from(file, 0) == ([{"event": "é"}], 16)
    assert read_from(file, 16) == ([], 16)


@pytest.mark.parametrize(
    ("events", "status", "message"),
    [
        ([], "RUNNING", None),
        ([("finished", "")], "FINISHED", None),
        ([("failed", "update 7: loss nan")], "FAILED", "update 7: loss nan"),
        ([("killed", "stopped by SIGTERM")], "KILLED", "stopped by SIGTERM"),
        ([("killed", "found so"), ("finished", "")], "FINISHED", None),
    ],
)
def test_the_status_is_that_of_the_last_end(
    store: Store, execution: Execution, events: list[tuple[str, str]], status: str, message: str | None
) -> None:
    for event, text in events:
        execution.append_event(event, text)
        sync_one(store, execution, None)
    sync_one(store, execution, None)
    run = only_run(store)
    assert run.info.status == status
    assert run.data.tags.get("noam.message") == message
    assert ("mlflow.note.content" in run.data.tags) == (message is not None)
    if status != "RUNNING":
        assert run.info.end_time == execution.events()[-1]["t"]


def test_what_ended_without_a_word_is_killed_at_the_next_sync(store: Store, workspace: Path) -> None:
    started = run_stage("pytest", "--version").returncode  # any process that is gone by now
    assert started == 0
    made = subprocess.run(
        [sys.executable, "-c", "from stages.execution import *; from stages.params import *; "
         "print(Execution.create('trained', load_params(Params).model_dump()).id)"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    execution = Execution(paths.run_state() / "executions" / made)
    record = json.loads((execution.folder / "execution.json").read_text(encoding="utf-8"))
    record["owner"] = record["trainer"]  # dvc is gone as well
    files.write_json(execution.folder / "execution.json", record)

    alive = Execution.create("trained", load_params(Params).model_dump())
    account = Account()
    sync_executions(store, account)
    assert account.running == 1
    assert only_run(store).info.status == "KILLED"
    assert only_run(store).data.tags["noam.execution"] == execution.id != alive.id


def test_names_and_tags_carry_the_factors(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_EXP_NAME", "salty-tapa")
    params = load_params(Params).model_dump() | {
        "loss": "notebook",
        "eps": 1e-8,
        "prompts": ["x" * 90],
        "corpus": "a/ñu.txt",
        "workers": 7,  # on which no result depends
    }
    record = Execution.create("trained", params).record
    name = run_name(record, {})
    assert name.startswith("warmup=4000 · seed=0 · ")
    assert name.endswith(" · salty-tapa")
    for factor in ("corpus=ñu.txt", "loss=notebook", "eps=1e-08", "d_model=16"):
        assert factor in name.split(" · ")
    assert "layers" not in name
    assert "workers" not in name
    assert len(name) <= 250
    long = record.model_copy(
        update={"params": params | {"corpus": "x" * 900, "optimizer": "y" * 900, "loss": "z" * 900}}
    )
    assert len(run_name(long, {"noam.diverged_at": "3", "noam.repeat": "2"})) == 250
    assert run_name(long, {"noam.diverged_at": "3", "noam.repeat": "2"}).endswith(" · salty-tapa · diverged · repeat 2")


def test_the_same_results_again_are_told_apart(store: Store, execution: Execution) -> None:
    names = []
    for number in range(3):
        current = execution if number == 0 else train_execution()
        outbox.set_fingerprint(current, str(fingerprint_of_folder()))
        current.close("finished")
        names.append(sync_one(store, current, None))
        time.sleep(0.002)
    assert [name.rpartition(" · ")[2] for name in names[1:]] == ["repeat 2", "repeat 3"]
    assert [run.data.tags.get("noam.repeat") for run in store.runs()] == [None, "2", "3"]
    assert len({run.data.tags["noam.execution"] for run in store.runs()}) == 3


def test_long_values_odd_names_and_numbers_that_are_none(store: Store, workspace: Path) -> None:
    params = load_params(Params).model_dump() | {"prompts": ["palabra " * 1000], "corpus": "d/" + "ä" * 598}
    execution = Execution.create("trained", params)
    odd: dict[str, Any] = {
        "pérdida (val)": 1.0,
        "acc@1": 0.5,
        "a//../b": 2.0,
        "損失": 3.0,
        "bad": float("inf"),
        "nan": float("nan"),
    }
    with Journal(execution) as journal:
        journal.log(5, odd | {"nan": float("nan")})
        journal.log(6, {"acc@1": 0.75})
    execution.append_event("failed", "x" * 20_000)
    sync_one(store, execution, None)

    run = only_run(store)
    assert run.data.metrics == {"pérdida _val_": 1.0, "acc_1": 0.75, "a/b": 2.0, "損失": 3.0}
    assert run.data.tags["noam.diverged_at"] == "5"
    assert "diverged at update 5: bad is not finite" in run.data.tags["mlflow.note.content"]
    assert len(run.data.params["prompts"]) == 6000
    assert run.data.params["prompts"].endswith(" characters)")
    assert run.data.params["corpus"] == params["corpus"]
    assert run.info.status == "FAILED"


def test_every_limit_of_mlflow_is_kept() -> None:
    assert name_for_mlflow("x" * 300) == "x" * 250
    assert name_for_mlflow("//") == "_"
    assert param_values({"flag": True, "list": [1, "ñ"], "text": "true"}) == {
        "flag": "true",
        "list": '[1, "ñ"]',
        "text": "true",
    }


def test_what_a_run_computed_with_is_in_its_tags(store: Store, execution: Execution) -> None:
    Replay.open(store, execution)
    tags = only_run(store).data.tags
    assert {key.removeprefix("noam.env."): tags[key] for key in tags if key.startswith("noam.env.")} == ENVIRONMENT


def test_a_run_that_diverged_is_marked_and_finishes(store: Store, workspace: Path) -> None:
    write_results(workspace, seed=0, diverged={0: 30})
    execution = train_execution()
    outbox.set_fingerprint(execution, str(fingerprint_of_folder()))
    execution.close("finished")
    for _ in range(2):
        sync_one(store, execution, workspace)
    run = only_run(store)
    assert (run.info.status, run.data.tags["noam.diverged_at"]) == ("FINISHED", "30")
    assert run.info.run_name.endswith(" · diverged")
    assert run.data.tags["mlflow.note.content"].startswith(
        "diverged at update 30: loss nan is not finite, at rate 0.5;"
    )
    assert [step for step, _, _ in history(store, run, "train/loss")] == list(range(1, 30))
    assert "final/train_loss" not in run.data.metrics
    assert "final/train_accuracy" in run.data.metrics
    assert not [key for key in run.data.metrics if "last_finite" in key]


def test_what_the_user_writes_about_a_run_stays(store: Store, execution: Execution) -> None:
    execution.append_event("killed", "stopped by SIGTERM")
    sync_one(store, execution, None)
    assert only_run(store).data.tags["mlflow.note.content"] == "KILLED: stopped by SIGTERM"
    store.client.set_tag(only_run(store).info.run_id, "mlflow.note.content", "mía")
    execution.append_event("failed", "worse")
    sync_one(store, execution, None)
    run = only_run(store)
    assert (run.data.tags["mlflow.note.content"], run.data.tags["noam.message"]) == ("mía", "worse")


def test_a_run_that_was_deleted_by_hand_stays_so(store: Store, execution: Execution) -> None:
    execution.close("failed", "a mistake")
    sync_one(store, execution, None)
    store.client.delete_run(only_run(store).info.run_id)
    account = Account()
    sync_executions(store, account)
    assert (account.deleted, account.brought) == (1, [])
    assert [run.info.lifecycle_stage for run in connect().runs()] == ["deleted"]


def test_three_syncs_at_once_make_one_run(store: Store, execution: Execution) -> None:
    execution.close("failed", "for a test")
    paths.LOCK.unlink()  # no results that were to be brought in as well
    command = [sys.executable, "-c", "from stages.tracking.sync import sync_all; sync_all()"]
    workers = [subprocess.Popen(command, env=os.environ, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    counts = [worker.communicate(timeout=100)[0].splitlines()[-1] for worker in workers]
    assert sum("1 brought" in line for line in counts) >= 1
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    run = only_run(store)
    assert history(store, run, "train/loss") == journalled(execution, "train/loss")

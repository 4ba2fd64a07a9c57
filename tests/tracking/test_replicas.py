"""Several replicas in MLflow: a run of each with its curves, a summary with their spread, and nothing twice."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.entities import Run

from stages import files, paths
from stages.execution import Execution, Journal
from stages.params import Params, load_params
from stages.tracking import outbox
from stages.tracking.fingerprint import fingerprint_of_folder
from stages.tracking.groups import members
from stages.tracking.store import Store
from stages.tracking.sync import Account, sync_all, sync_executions, sync_one
from tests.tracking.lab import (
    UPDATES,
    begin_replica,
    history,
    journal_results,
    journalled,
    run_stage,
    runs_by_seed,
    set_params,
    train_execution,
    wait_until,
    write_pipeline,
    write_results,
)
from tests.tracking.test_sync import KILLED_HALF_WAY

KEYS = ("train/loss", "optim/lr", "window/loss_mean", "eval/train_loss")


@pytest.fixture
def three(workspace: Path) -> Path:
    """A workspace with the results of three replicas, the second of which diverged."""
    set_params(workspace, replicas=3)
    write_results(workspace, seed=0, diverged={1: 30})
    return workspace


@pytest.fixture
def finished(three: Path) -> Execution:
    """The execution that made these results, and is not in MLflow yet."""
    execution = train_execution()
    outbox.set_fingerprint(execution, str(fingerprint_of_folder()))
    execution.close("finished")
    return execution


def mark_dead(execution: Execution) -> None:
    """Let the processes behind an execution be gone."""
    gone = execution.record.trainer.model_copy(update={"created": 0.0})
    record = execution.record.model_copy(update={"trainer": gone, "owner": gone})
    files.write_text(execution.folder / "execution.json", record.model_dump_json())


def whole(store: Store, group: Execution) -> tuple[Run, dict[int, Run]]:
    """The summary and the replicas of a group that is finished, each with all that is its own and no more."""
    (summary,) = runs_by_seed(store, "summary").values()
    replicas = runs_by_seed(store, "replica")
    assert [replicas[seed].info.status for seed in sorted(replicas)] == ["FINISHED"] * 3
    assert summary.info.status == "FINISHED"
    assert len(list(store.runs())) == 4
    for run in (summary, *replicas.values()):
        assert run.data.tags["noam.complete"] == "yes"
        assert (run.data.tags["noam.group"], run.data.tags["noam.replicas"]) == (group.id, "3")
    for one in members(group):
        run = replicas[one.record.seed]
        assert run.data.tags["noam.execution"] == one.id
        for key in KEYS:
            assert history(store, run, key) == journalled(one, key) != []
    return summary, replicas


def test_each_replica_is_a_run_and_their_summary_another(store: Store, three: Path) -> None:
    group = train_execution()
    assert run_stage("stages.track").returncode == 0
    summary, replicas = whole(store, group)

    assert summary.info.run_name.startswith("warmup=4000 · seeds 0–2 · ")
    assert summary.info.run_name.endswith(" · 1 of 3 diverged")
    assert [replicas[seed].data.params["seed"] for seed in range(3)] == ["0", "1", "2"]
    assert replicas[2].info.run_name.startswith("warmup=4000 · seed=2 · ")
    assert {run.data.tags["mlflow.parentRunId"] for run in replicas.values()} == {summary.info.run_id}
    assert "mlflow.parentRunId" not in summary.data.tags

    metrics = files.read_json(paths.METRICS)
    for key in ("loss", "loss_std", "loss_low", "loss_high", "excess"):
        assert summary.data.metrics[f"summary/train_{key}"] == metrics["train"][key]
    assert (summary.data.metrics["summary/replicas"], summary.data.metrics["summary/diverged"]) == (3.0, 1.0)
    assert {key.partition("/")[0] for key in summary.data.metrics} == {"summary"}  # none that a mean would count twice
    for seed, one in enumerate(files.read_json(paths.REPLICAS)):
        assert replicas[seed].data.metrics.get("final/train_loss") == one["train"]["loss"]
        assert replicas[seed].data.metrics["final/train_accuracy"] == one["train"]["accuracy"]
        assert not [key for key in replicas[seed].data.metrics if key.startswith("summary/")]

    listed = {one.path for one in store.client.list_artifacts(summary.info.run_id)}
    assert {"figures", "images", "report", "params.yaml", "dvc.lock"} <= listed
    own = {one.path for one in store.client.list_artifacts(replicas[1].info.run_id, "report")}
    assert own == {"report/history.json", "report/validation.json"}
    (model,) = store.client.search_logged_models([store.experiment_id])
    assert model.source_run_id == summary.info.run_id
    assert not list((three / "mlartifacts/models").rglob("replicas"))


def test_the_runs_of_a_group_link_to_each_other(store: Store, three: Path, finished: Execution) -> None:
    sync_one(store, finished, three)
    summary, replicas = whole(store, finished)
    rows = summary.data.tags["mlflow.note.content"].splitlines()[2:]
    place = f"#/experiments/{store.experiment_id}/runs"
    assert rows == [
        f"| [0]({place}/{replicas[0].info.run_id}) | 1.8000 | finished |",
        f"| [1]({place}/{replicas[1].info.run_id}) | – | diverged at update 30 |",
        f"| [2]({place}/{replicas[2].info.run_id}) | 2.0000 | finished |",
    ]
    link = f"Replica of [{summary.info.run_name}]({place}/{summary.info.run_id})."
    assert replicas[0].data.tags["mlflow.note.content"] == link
    note = replicas[1].data.tags["mlflow.note.content"]
    assert note.startswith(f"{link}\n\ndiverged at update 30: loss nan is not finite")
    assert (replicas[1].data.tags["noam.diverged_at"], replicas[1].info.status) == ("30", "FINISHED")
    assert replicas[1].info.run_name.endswith(" · diverged")


def test_again_and_out_of_an_empty_database(
    store: Store, three: Path, finished: Execution, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sync_all() == 0
    whole(store, finished)
    assert sync_all() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "runs: 0 brought, 1 already there"
    whole(store, finished)
    for run in store.runs():
        store.client.delete_run(run.info.run_id)
    code = "from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as S; import sys; s = S(*sys.argv[1:3]);"
    purge = f"{code} [s._hard_delete_run(run) for run in sys.argv[3:]]"
    gone = [run.info.run_id for run in store.runs()]
    command = [sys.executable, "-W", "ignore", "-c", purge, store.uri, str(three / "mlartifacts"), *gone]
    subprocess.run(command, check=True, capture_output=True)
    assert list(store.runs()) == []
    assert sync_all() == 0
    whole(store, finished)


@pytest.mark.parametrize("after", [4, 9])
def test_killed_half_way_and_repeated(store: Store, three: Path, finished: Execution, after: int) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED_HALF_WAY, str(after)], check=False)
    assert killed.returncode == -9
    assert sync_all() == 0
    _, replicas = whole(store, finished)
    assert len(store.client.get_metric_history(replicas[0].info.run_id, "final/train_loss")) == 1


def test_curves_of_all_replicas_while_they_train(store: Store, three: Path) -> None:
    group = Execution.create("trained", load_params(Params).model_dump())
    group.make_current()
    first = begin_replica(group, 0)
    journal_results(first, until=9)
    with subprocess.Popen([sys.executable, "-m", "stages.tracking.follow", str(group.folder)]) as follower:
        wait_until(lambda: [run for run in store.runs() if "train/loss" in run.data.metrics], 90)
        assert {run.info.status for run in store.runs()} == {"RUNNING"}
        second = begin_replica(group, 1)
        with Journal(second) as journal:
            journal.log(1, {"train/loss": 2.0})
        journal_results(first)
        first.append_event("finished")
        wait_until(lambda: runs_by_seed(store, "replica").keys() == {0, 1}, 30)
        wait_until(lambda: runs_by_seed(store, "replica")[0].info.status == "FINISHED", 30)
        assert runs_by_seed(store, "replica")[1].info.status == "RUNNING"
        assert runs_by_seed(store, "summary")[0].info.status == "RUNNING"
        assert runs_by_seed(store, "summary")[0].data.tags["noam.group"] == group.id

        mark_dead(second)  # killed with -9, like the group
        group.close("killed", "stopped by SIGTERM")
        assert follower.wait(60) == 0
    replicas = runs_by_seed(store, "replica")
    assert {seed: run.info.status for seed, run in replicas.items()} == {0: "FINISHED", 1: "KILLED"}
    assert "while the other replicas went on" in replicas[1].data.tags["noam.message"]
    assert history(store, replicas[0], "train/loss") == journalled(first, "train/loss")
    summary = runs_by_seed(store, "summary")[0]
    assert summary.info.status == "KILLED"
    assert summary.data.tags["mlflow.note.content"].startswith("KILLED: stopped by SIGTERM\n\n| seed | status |\n")


def test_replicas_of_a_group_that_failed_come_at_the_next_sync(store: Store, three: Path) -> None:
    group = Execution.create("trained", load_params(Params).model_dump())
    for seed in (0, 2):
        replica = begin_replica(group, seed)
        journal_results(replica)
        replica.append_event("finished" if seed else "failed", "" if seed else "OverflowError: la pérdida")
    group.close("failed", "1 of 3 replicas failed")
    account = Account()
    sync_executions(store, account)
    assert len(account.brought) == 1
    replicas = runs_by_seed(store, "replica")
    assert {seed: run.info.status for seed, run in replicas.items()} == {0: "FAILED", 2: "FINISHED"}
    assert "FAILED: OverflowError: la pérdida" in replicas[0].data.tags["mlflow.note.content"]
    assert history(store, replicas[2], "train/loss") == journalled(members(group)[1], "train/loss")
    account = Account()
    sync_executions(store, account)
    assert (account.present, account.brought) == (1, [])
    assert len(list(store.runs())) == 3


def test_a_replica_that_its_group_never_heard_of_comes_with_it(store: Store, three: Path) -> None:
    group = Execution.create("trained", load_params(Params).model_dump())
    group.add_replica(begin_replica(group, 0))
    lost = Execution.create("trained", load_params(Params).model_dump() | {"seed": 1}, parent=group.id)
    for one in (*members(group), lost):
        one.append_event("killed", "with its group")
    mark_dead(group)
    group.close("killed", "without a word")
    account = Account()
    sync_executions(store, account)
    assert len(account.brought) == 1
    summary = runs_by_seed(store, "summary")[0].info.run_id
    replicas = runs_by_seed(store, "replica")
    assert {seed: run.data.tags["mlflow.parentRunId"] for seed, run in replicas.items()} == {0: summary, 1: summary}


def test_a_replica_that_began_anew_is_there_as_killed_and_counts_no_more(store: Store, three: Path) -> None:
    """It was killed before its first checkpoint, so the next start made another execution of the same seed."""
    group = Execution.create("trained", load_params(Params).model_dump())
    group.make_current()
    lost = begin_replica(group, 1)
    journal_results(lost, until=9)
    for one in (lost, group):
        one.append_event("killed", "stopped by SIGKILL")
    sync_executions(store, Account())
    group.resume()
    for seed in range(3):
        replica = begin_replica(group, seed)
        journal_results(replica)
        replica.append_event("finished")
    group.append_event("trained")
    assert run_stage("stages.track").returncode == 0

    (summary,) = store.tagged("noam.role", "summary")
    found = {run.data.tags["noam.execution"]: run for run in store.tagged("noam.role", "replica")}
    assert len(found) == 4
    assert {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {summary.info.run_id}
    assert found[lost.id].info.status == "KILLED"
    assert "final/train_accuracy" not in found[lost.id].data.metrics
    assert [found[one.id].info.status for one in members(group)] == ["FINISHED"] * 3
    assert found[lost.id].info.run_id not in summary.data.tags["mlflow.note.content"]
    assert summary.data.tags["mlflow.note.content"].count("| finished |") == 2
    account = Account()
    sync_executions(store, account)
    assert (account.present, account.brought) == (2, [])


def test_replicas_that_go_on_in_a_larger_group_move_there(store: Store, three: Path) -> None:
    """Stopped with two of two replicas under way, started again with three: one was over, one goes on."""
    before = Execution.create("trained", load_params(Params).model_dump() | {"replicas": 2})
    over, stopped = begin_replica(before, 0), begin_replica(before, 1)
    journal_results(over)
    over.append_event("finished")
    journal_results(stopped, until=20)
    stopped.append_event("killed", "stopped with the experiment")
    before.close("killed", "stopped by SIGINT")
    sync_executions(store, Account())
    kept = {seed: run.info.run_id for seed, run in runs_by_seed(store, "replica").items()}

    group = Execution(before.folder.with_name("99991231-235959-00000000"))  # ids begin with the time
    later = before.record.model_copy(update={"id": group.id, "params": before.record.params | {"replicas": 3}})
    files.write_text(group.folder / "execution.json", later.model_dump_json())
    group.make_current()
    group.add_replica(over)
    stopped.resume(group.id)
    group.add_replica(stopped)
    journal_results(stopped)
    stopped.append_event("finished")
    third = begin_replica(group, 2)
    journal_results(third)
    third.append_event("finished")
    group.append_event("trained")
    assert run_stage("stages.track").returncode == 0

    replicas = runs_by_seed(store, "replica")
    summaries = {run.data.tags["noam.group"]: run for run in store.tagged("noam.role", "summary")}
    assert {seed: replicas[seed].info.run_id for seed in kept} == kept
    for run in replicas.values():
        assert run.info.status == "FINISHED"
        assert run.data.tags["noam.group"] == group.id
        assert run.data.tags["mlflow.parentRunId"] == summaries[group.id].info.run_id
        assert run.data.tags["noam.replicas"] == "3"
    assert summaries[group.id].info.status == "FINISHED"
    assert summaries[before.id].data.tags["mlflow.note.content"] == "KILLED: stopped by SIGINT"
    for run, one in zip((replicas[0], replicas[1], replicas[2]), (over, stopped, third), strict=True):
        assert history(store, run, "train/loss") == journalled(one, "train/loss") != []
    account = Account()
    sync_executions(store, account)
    assert (account.present, account.brought) == (2, [])


def test_a_replica_that_goes_on_alone_is_a_run_like_any_other(store: Store, three: Path) -> None:
    group = Execution.create("trained", load_params(Params).model_dump())
    replica = begin_replica(group, 0)
    journal_results(replica, until=20)
    for one in (replica, group):
        one.append_event("killed", "stopped")
    sync_executions(store, Account())
    set_params(three, replicas=1)
    write_results(three, seed=0)
    replica.resume()
    replica.make_current()
    journal_results(replica)
    replica.append_event("trained")
    assert run_stage("stages.track").returncode == 0
    (run,) = store.tagged("noam.execution", replica.id)
    run = store.client.get_run(run.info.run_id)
    assert (run.info.status, run.data.tags["noam.complete"]) == ("FINISHED", "yes")
    assert not {"noam.role", "noam.group", "noam.replicas", "mlflow.parentRunId"} & run.data.tags.keys()
    assert "mlflow.note.content" not in run.data.tags
    assert run.data.metrics["final/train_loss"] == 1.8


def test_a_replica_deleted_by_hand_stays_so(store: Store, three: Path, finished: Execution) -> None:
    sync_one(store, finished, three)
    replicas = runs_by_seed(store, "replica")
    store.client.delete_run(replicas[2].info.run_id)
    assert sync_all() == 0
    states = {run.info.run_id: run.info.lifecycle_stage for run in store.runs()}
    assert len(states) == 4
    assert states.pop(replicas[2].info.run_id) == "deleted"
    assert set(states.values()) == {"active"}


def test_results_of_a_cache_become_summary_and_replicas(
    store: Store, three: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_stage("stages.track").returncode == 0
    (group,) = (one for one in Execution.all() if not one.record.parent)
    summary, replicas = whole(store, group)
    assert {run.data.tags["noam.kind"] for run in (summary, *replicas.values())} == {"restored"}
    for seed, run in replicas.items():
        rows = files.read_json(paths.MODEL / "replicas" / str(seed) / "history.json")
        assert [(step, value) for step, value, _ in history(store, run, "train/loss")] == [
            (row["step"], row["loss"]) for row in rows
        ]
        assert len(rows) == (29 if seed == 1 else UPDATES)
    assert replicas[1].data.tags["noam.diverged_at"] == "30"
    assert not [key for key in replicas[0].data.tags if key.startswith("noam.env.")]  # of another machine, maybe
    assert sync_all() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "runs: 0 brought, 1 already there"


def test_a_restoration_cut_short_is_swept_away(store: Store, three: Path) -> None:
    assert run_stage("stages.track", MLFLOW_TRACKING_URI="http://127.0.0.1:9").returncode == 0
    (group,) = (one for one in Execution.all() if not one.record.parent)
    (group.folder / "fingerprint").unlink()
    paths.LOCK.unlink()
    assert len(Execution.all()) == 4
    mark_dead(group)
    assert sync_all() == 0
    assert (Execution.all(), list(store.runs())) == ([], [])


def test_the_outbox_has_the_records_of_all_replicas(store: Store, three: Path) -> None:
    group = train_execution()
    assert run_stage("stages.track", MLFLOW_TRACKING_URI="http://127.0.0.1:9").returncode == 0
    shutil.rmtree(three / "reports")
    shutil.rmtree(three / "data")
    assert sync_all() == 0
    whole(store, group)
    assert outbox.kept(group) is None
    assert re.fullmatch(r"\d+", runs_by_seed(store, "summary")[0].data.tags["noam.journal"])


def test_results_whose_replicas_are_others_are_not_taken_for_its_own(store: Store, three: Path) -> None:
    group = train_execution()
    file = paths.MODEL / "replicas/2/history.json"
    rows = files.read_json(file)
    rows[7]["loss"] += 1.0
    files.write_records(file, rows)
    write_pipeline(three, load_params(Params).model_dump())
    assert run_stage("stages.track").returncode == 0
    kinds = {run.data.tags["noam.kind"]: run for run in store.tagged("noam.role", "summary")}
    assert (kinds["trained"].info.status, kinds["restored"].info.status) == ("KILLED", "FINISHED")
    assert group.events()[-1]["event"] == "killed"

"""Runs copied between stores: all of them, each once, whatever comes between; ids are those of the other store."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlparse

import mlflow
import pytest
import yaml
from mlflow.entities import LoggedModelStatus, Metric, Run

from stages import files
from stages.errors import TrackingError
from stages.execution import Execution
from stages.tracking import outbox
from stages.tracking.copying import Account, checked, copy_all, copy_runs
from stages.tracking.copying_files import download, listed, repository
from stages.tracking.copying_models import models_of
from stages.tracking.copying_names import TAG_CLAIM, TAG_COPY, Names, identity_of
from stages.tracking.fingerprint import fingerprint_of_folder
from stages.tracking.names import NOTE
from stages.tracking.store import Store, connect
from stages.tracking.studies import send_study
from stages.tracking.sync import sync_all
from stages.tracking.view import SHARED_VIEW, decode, encode, refresh_view
from tests.tracking.lab import free_port, set_params, train_execution, write_results

OWN = {"noam.copy", "noam.claim", "noam.copied"}


@pytest.fixture
def filled(store: Store, workspace: Path) -> Store:
    """The workspace's store, with runs of all kinds."""
    fill(store, workspace)
    return store


def fill(store: Store, workspace: Path) -> None:
    """A group of two replicas with all results, a study of them, a run that failed, and one that was made by hand."""
    set_params(workspace, replicas=2)
    write_results(workspace, seed=0)
    execution = train_execution()
    outbox.set_fingerprint(execution, str(fingerprint_of_folder()))
    execution.close("finished")
    failed = Execution.create("trained", {"seed": 7, "warmup": 9})
    failed.append_event("failed", "out of luck")
    assert sync_all() == 0
    send_study(store, write_report(workspace, str(fingerprint_of_folder())))
    refresh_view(store)
    add_by_hand(store)
    client, identity = store.client, by_hand_of(store).info.run_id
    client.set_tag(identity, NOTE, f"better than {head_of(store).info.run_id}")


def add_by_hand(store: Store) -> None:
    """A run that somebody logged from a notebook."""
    client = store.client
    identity = client.create_run(store.experiment_id, run_name="by hand").info.run_id
    client.log_batch(identity, metrics=[Metric("x", float("nan"), 5, 0), Metric("x", 2.0, 6, 1)])
    client.log_param(identity, "lr", 0.1)
    client.log_text(identity, "ñ", "a folder/a note.txt")
    client.set_terminated(identity, "KILLED", 12345)


def write_report(workspace: Path, fingerprint: str, *, text: str = "an answer") -> Path:
    """The report of a study with one variant."""
    folder = workspace / "reports/studies/of-two"
    variant = {"variant": "all", "n": 2, "mean": 1.85, "low": 1.2, "high": 2.5, "diverged": 0, "missing": 0}
    results = {
        "question": {"metric": "train.loss", "text": "is it so?"},
        "variants": [variant],
        "differences": [],
        "statements": [{"kind": "answer", "text": text}],
    }
    files.write_json(folder / "results.json", results)
    files.write_json(folder / "members.json", [{"variant": "all", "fingerprint": fingerprint}])
    files.write_text(folder / "index.html", f"<!doctype html><title>{text}</title>\n")
    return folder


def head_of(store: Store) -> Run:
    """The run that sums up the replicas."""
    return next(run for run in store.runs() if run.data.tags.get("noam.role") == "summary")


def by_hand_of(store: Store) -> Run:
    return next(run for run in store.runs() if run.info.run_name == "by hand")


@pytest.fixture
def plain(store: Store) -> Store:
    """The workspace's store, with one run."""
    add_by_hand(store)
    return store


@pytest.fixture
def other(workspace: Path, empty_database: Path) -> Store:
    """A store beside the workspace's, with none of its runs."""
    return connect(f"sqlite:///{fresh_database(workspace.parent / 'the team' / 'runs.db', empty_database)}")


def fresh_database(file: Path, empty: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(empty, file)
    return file


def contents(store: Store) -> dict[Any, Any]:
    """Everything in a store, with identities in the place of ids."""
    runs = [store.client.get_run(run.info.run_id) for run in store.runs()]
    there = [run for run in runs if run.info.lifecycle_stage != "deleted"]
    known = {run.info.run_id: "/".join(identity_of(run)) for run in runs}
    known[f"experiments/{store.experiment_id}/"] = "experiments/E/"
    models = {run.info.run_id: models_of(store, run.info.run_id) for run in there}
    for run in there:
        for model in models[run.info.run_id]:
            known[model.artifact_location] = "LOCATION"
            known[model.model_id] = f"model of {known[run.info.run_id]}"
    found = {}
    for run in there:
        assert identity_of(run) not in found, "twice"
        found[identity_of(run)] = {
            "info": (run.info.status, run.info.start_time, run.info.end_time, run.info.run_name),
            "params": run.data.params,
            "tags": {
                key: _neutral(value, known)
                for key, value in run.data.tags.items()
                if key not in OWN and key != "noam.note"
            },
            "metrics": {key: points(store, run, key) for key in run.data.metrics},
            "files": content(store, run.info.artifact_uri, known),
            "inputs": [(one.dataset.to_dictionary(), one.tags) for one in run.inputs.dataset_inputs],
            "outputs": [(_neutral(one.model_id, known), one.step) for one in run.outputs.model_outputs],
            "models": [
                (one.name, one.status, one.params, one.model_type, content(store, one.artifact_location, known))
                for one in models[run.info.run_id]
            ],
        }
    return found


def _neutral(text: str, known: dict[str, str]) -> str:
    for identity, name in known.items():
        text = text.replace(identity, name)
    return text


def points(store: Store, run: Run, key: str) -> list[tuple[int, int, str]]:
    return [(m.step, m.timestamp, repr(m.value)) for m in store.client.get_metric_history(run.info.run_id, key)]


def content(store: Store, location: str, known: dict[str, str]) -> dict[str, str]:
    """The files of a run or model with their digests; of the file that names ids its text."""
    place = repository(location, store.uri)
    with TemporaryDirectory() as temporary:
        found = {name: download(place, name, Path(temporary)) for name, _ in listed(place)}
        return {
            name: _neutral(path.read_text(encoding="utf-8"), known) if name == "MLmodel" else files.md5_file(path)
            for name, path in found.items()
        }


def test_everything_is_copied_once_and_back(filled: Store, other: Store, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(filled)
    assert len(before) == 6
    capsys.readouterr()
    assert copy_all(to=other.uri) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "runs: 6 copied, 0 already there"
    assert contents(other) == before
    (model,) = other.client.search_logged_models([other.experiment_id])
    assert (model.status, model.tags["noam.fingerprint"]) == (LoggedModelStatus.READY, fingerprint_of_folder())
    ids = {run.info.run_id for run in filled.runs()}
    tags = [value for run in other.runs() for key, value in run.data.tags.items() if key not in OWN]
    assert not [identity for identity in ids if identity in "".join(tags)]

    for _ in range(2):
        assert copy_all(to=other.uri) == 0
        assert copy_all(source=other.uri) == 0
    assert set(capsys.readouterr().out.splitlines()) == {"runs: 0 copied, 6 already there"}
    assert contents(filled) == contents(other) == before
    assert not any(OWN & run.data.tags.keys() for run in filled.runs())


def test_the_links_are_those_of_the_other_store(filled: Store, other: Store) -> None:
    key = f"{SHARED_VIEW}mine"
    head, by_hand = head_of(filled).info.run_id, by_hand_of(filled).info.run_id
    filled.client.set_experiment_tag(filled.experiment_id, key, encode({"runsPinned": [head], "name": "ñ"}))
    assert copy_all(to=other.uri) == 0
    copy = head_of(other)
    replicas = [run for run in other.runs() if run.data.tags.get("noam.role") == "replica"]
    assert [run.data.tags["mlflow.parentRunId"] for run in replicas] == [copy.info.run_id] * 2
    assert all(f"/runs/{run.info.run_id})" in copy.data.tags[NOTE] for run in replicas)
    assert by_hand_of(other).data.tags[NOTE] == f"better than {copy.info.run_id}"
    assert by_hand_of(other).data.tags[TAG_COPY] == by_hand
    (model,) = models_of(other, copy.info.run_id)
    assert [one.model_id for one in other.client.get_run(copy.info.run_id).outputs.model_outputs] == [model.model_id]
    tags = other.client.get_experiment(other.experiment_id).tags
    assert decode(tags[key]) == {"runsPinned": [copy.info.run_id], "name": "ñ"}
    assert (
        tags[f"{SHARED_VIEW}study-of-two"]
        == (filled.client.get_experiment(filled.experiment_id).tags[f"{SHARED_VIEW}study-of-two"])
    )


def test_texts_name_runs_and_the_experiment_of_the_other_store() -> None:
    here, there, unknown = "1" * 32, "2" * 32, "3" * 32
    names = Names(("1", "27"), {here: there, f"m-{here}": f"m-{there}"})
    text = f"[a](#/experiments/1/runs/{here}) [b](#/experiments/12/runs/{unknown}) models:/m-{here} x{here}"
    assert names.text(text) == (
        f"[a](#/experiments/27/runs/{there}) [b](#/experiments/12/runs/{unknown}) models:/m-{there} x{here}"
    )
    assert names.inverse().text(names.text(text)) == text


def test_the_copied_model_answers(filled: Store, other: Store, tmp_path: Path) -> None:
    assert copy_all(to=other.uri) == 0
    (model,) = other.client.search_logged_models([other.experiment_id])
    mlmodel = download(repository(model.artifact_location, other.uri), "MLmodel", tmp_path).read_text(encoding="utf-8")
    about = yaml.safe_load(mlmodel)
    assert (about["model_id"], about["run_id"]) == (model.model_id, head_of(other).info.run_id)
    assert about["artifact_path"] == model.artifact_location
    loaded = mlflow.pyfunc.load_model(str(Path(unquote(urlparse(model.artifact_location).path))))
    assert loaded.predict(["el perro"], params={"top_k": 3})


def test_what_changed_on_one_side_follows_and_what_changed_on_both_is_named(
    plain: Store, other: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    run = by_hand_of(plain).info.run_id
    assert copy_all(to=other.uri) == 0
    there = by_hand_of(other).info.run_id
    plain.client.set_tag(run, "reviewed", "no")
    assert copy_all(to=other.uri) == 0
    assert other.client.get_run(there).data.tags["reviewed"] == "no"

    other.client.set_tag(there, NOTE, "written on the server")  # back, where nothing has changed since
    other.client.log_metric(there, "x", 3.0, timestamp=9, step=2)
    assert copy_all(source=other.uri) == 0
    assert plain.client.get_run(run).data.tags[NOTE] == "written on the server"
    assert [step for step, _, _ in points(plain, plain.client.get_run(run), "x")] == [0, 1, 2]
    capsys.readouterr()
    assert copy_all(to=other.uri) == 0
    assert capsys.readouterr().out == "runs: 0 copied, 1 already there\n"

    plain.client.set_tag(run, "reviewed", "yes")
    other.client.set_tag(there, "reviewed", "perhaps")
    plain.client.set_tag(run, "dvc.experiment", "one")
    other.client.set_tag(there, "dvc.experiment", "two")
    assert copy_all(to=other.uri) == 1
    assert "differs, left as it is there: by hand: tag reviewed: 'yes' here, 'perhaps' there" in capsys.readouterr().out
    tags = other.client.get_run(there).data.tags
    assert (tags["reviewed"], tags["dvc.experiment"]) == ("perhaps", "two, one")


def test_what_differs_is_never_overwritten(plain: Store, other: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody has sent the same execution there, with another parameter, a file of the same size and a larger one."""
    run = by_hand_of(plain).info.run_id
    plain.client.log_text(run, "here", "larger.txt")
    made = other.client.create_run(other.experiment_id, run_name="theirs", tags={TAG_COPY: run}).info.run_id
    other.client.log_param(made, "lr", 0.2)
    other.client.log_text(made, "x!", "a folder/a note.txt")
    other.client.log_text(made, "out there", "larger.txt")
    other.client.set_terminated(made, "FINISHED", 5)
    assert copy_all(to=other.uri) == 1
    said = capsys.readouterr().out
    for what in (
        "parameter lr: '0.1' here, '0.2' there",
        "file a folder/a note.txt",
        "file larger.txt",
        "status: KILLED",
    ):
        assert what in said
    assert said.splitlines()[-1] == "runs: 0 copied, 0 already there, 1 brought up to date, 1 with differences"
    (there,) = other.runs()
    assert there.data.params == {"lr": "0.2"}
    assert there.info.status == "FINISHED"
    place = repository(there.info.artifact_uri, other.uri)
    assert [name for name, _ in listed(place)] == ["a folder/a note.txt", "larger.txt"]
    assert Path(place.download_artifacts("larger.txt")).read_text(encoding="utf-8") == "out there"
    assert set(there.data.metrics) == {"x"}
    assert copy_all(to=other.uri) == 1
    again = capsys.readouterr().out.splitlines()
    assert again[0] == said.splitlines()[1]
    assert again[-1] == "runs: 0 copied, 1 already there, 1 with differences"


def test_runs_under_way_and_deleted_ones_are_left_out(
    plain: Store, other: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    create = plain.client.create_run
    group = create(plain.experiment_id, run_name="group")
    done = create(plain.experiment_id, run_name="replica", tags={"mlflow.parentRunId": group.info.run_id})
    plain.client.set_terminated(done.info.run_id)
    gone = create(plain.experiment_id, run_name="gone")
    plain.client.delete_run(gone.info.run_id)
    orphan = create(plain.experiment_id, run_name="orphan", tags={"mlflow.parentRunId": gone.info.run_id})
    plain.client.set_terminated(orphan.info.run_id)
    assert copy_all(to=other.uri) == 0
    last = "runs: 2 copied, 0 already there, 2 under way, 1 deleted in MLflow and left so"
    assert capsys.readouterr().out.splitlines()[-1] == last
    there = {run.info.run_name: run for run in other.runs()}
    assert there.keys() == {"by hand", "orphan"}
    assert "mlflow.parentRunId" not in there["orphan"].data.tags

    plain.client.set_terminated(group.info.run_id)
    assert copy_all(to=other.uri) == 0
    assert len(list(other.runs())) == 4
    other.client.delete_run(by_hand_of(other).info.run_id)
    capsys.readouterr()
    assert copy_all(to=other.uri) == 0
    assert capsys.readouterr().out == "runs: 0 copied, 3 already there, 2 deleted in MLflow and left so\n"
    assert by_hand_of(other).info.lifecycle_stage == "deleted"


def test_of_runs_made_at_once_the_one_with_the_least_claim_stays(plain: Store, other: Store) -> None:
    run, started = by_hand_of(plain).info.run_id, by_hand_of(plain).info.start_time
    claims = ["000000000000009-b", "000000000000007-c", "000000000000008-a"]
    made = [
        other.client.create_run(other.experiment_id, started, {TAG_COPY: run, TAG_CLAIM: claim}, "by hand").info.run_id
        for claim in claims
    ]
    copy_runs(plain, other, Account())
    states = {one.info.run_id: (one.info.lifecycle_stage, one.info.status) for one in other.runs()}
    assert [states[one][0] for one in made] == ["deleted", "active", "deleted"]
    assert states[made[1]] == ("active", "KILLED")
    assert contents(other) == contents(plain)


def test_restored_results_that_the_other_store_has_are_not_doubled(
    plain: Store, other: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for store, execution, kind in ((plain, "e-1", "restored"), (other, "e-2", "trained")):
        tags = {"noam.execution": execution, "noam.kind": kind, "noam.fingerprint": "f" * 64}
        made = store.client.create_run(store.experiment_id, tags=tags)
        store.client.set_terminated(made.info.run_id)
    assert copy_all(to=other.uri) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "runs: 1 copied, 1 already there"
    assert [run.data.tags.get("noam.execution") for run in other.runs() if run.info.run_name != "by hand"] == ["e-2"]


def test_a_study_that_has_grown_follows(filled: Store, other: Store, workspace: Path) -> None:
    assert copy_all(to=other.uri) == 0
    (workspace / "reports/studies/of-two/old.txt").write_text("x", encoding="utf-8")
    send_study(filled, write_report(workspace, str(fingerprint_of_folder()), text="another answer"))
    (workspace / "reports/studies/of-two/old.txt").unlink()
    assert copy_all(to=other.uri) == 0
    send_study(filled, write_report(workspace, str(fingerprint_of_folder()), text="a third answer"))
    assert copy_all(to=other.uri) == 0
    assert contents(other) == contents(filled)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "'' is no address of a store: expected http://"),
        ("runs.db", "'runs.db' is no address"),
        ("postgresql://x/y", "expected http://…, https://… or sqlite:///FILE"),
        ("sqlite:///mlflow.db", "is the store of this project"),
        ("http://ana:hush@lab:5000", "the other store: 'http://…@lab:5000' holds a user or a password"),
        ("postgresql://ana:hush@lab/x", "'postgresql://…@lab/x' is no address"),
    ],
)
def test_addresses_that_cannot_be_copied_to(workspace: Path, uri: str, message: str) -> None:
    with pytest.raises(TrackingError) as raised:
        checked(uri)
    assert message in str(raised.value)
    assert "hush" not in str(raised.value)
    assert not (workspace / "mlflow.db").exists()


def test_a_store_that_is_away_or_not_there(plain: Store, workspace: Path) -> None:
    with pytest.raises(TrackingError, match="refused"):
        copy_all(to=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TrackingError, match=r"none\.db: no such database"):
        copy_all(source="sqlite:///none.db")
    assert not (workspace / "none.db").exists()

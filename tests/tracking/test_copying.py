"""Runs copied between stores: all of them, each once, whatever comes between; ids are those of the other store."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from mlflow.entities import LoggedModelStatus, Metric, Run

from stages import files, paths
from stages.errors import TrackingError
from stages.execution import Execution
from stages.tracking import outbox
from stages.tracking.copying import Account, checked, copy_all, copy_experiment, copy_runs
from stages.tracking.copying_files import download, listed, repository
from stages.tracking.copying_models import models_of
from stages.tracking.copying_names import TAG_CLAIM, TAG_COPY, identity_of
from stages.tracking.fingerprint import fingerprint_of_folder
from stages.tracking.store import Store, connect
from stages.tracking.sync import sync_all
from stages.tracking.view import SHARED_VIEW, decode, encode, refresh_view
from tests.tracking.lab import set_params, train_execution, write_results

OWN = {"noam.copy", "noam.claim", "noam.copied"}


@pytest.fixture
def filled(store: Store, workspace: Path) -> Store:
    """A group of two replicas with all results, a run that failed, and a run that somebody made by hand."""
    set_params(workspace, replicas=2)
    write_results(workspace, seed=0)
    execution = train_execution()
    outbox.set_fingerprint(execution, str(fingerprint_of_folder()))
    execution.close("finished")
    failed = Execution.create("trained", {"seed": 7, "warmup": 9})
    failed.append_event("failed", "out of luck")
    assert sync_all() == 0
    by_hand = store.client.create_run(store.experiment_id, run_name="by hand")
    client, identity = store.client, by_hand.info.run_id
    client.log_batch(identity, metrics=[Metric("x", float("nan"), 5, 0), Metric("x", 2.0, 6, 1)])
    client.log_param(identity, "lr", 0.1)
    head = next(run for run in store.runs() if run.data.tags.get("noam.role") == "summary")
    client.set_tag(identity, "mlflow.note.content", f"better than {head.info.run_id}")
    client.log_text(identity, "ñ", "a folder/a note.txt")
    client.set_terminated(identity, "KILLED", 12345)
    return store


@pytest.fixture
def other(workspace: Path, empty_database: Path) -> Store:
    """A store beside the workspace's, with none of its runs."""
    return connect(f"sqlite:///{other_file(workspace, empty_database)}")


def other_file(workspace: Path, empty_database: Path) -> Path:
    folder = workspace.parent / "the team's"
    folder.mkdir(exist_ok=True)
    if not (folder / "runs.db").exists():
        shutil.copy(empty_database, folder / "runs.db")
    return folder / "runs.db"


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


def test_everything_is_copied_once_and_back(
    filled: Store, other: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(filled)
    assert len(before) == 5
    capsys.readouterr()
    assert copy_all(to=other.uri) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "runs: 5 copied, 0 already there"
    assert contents(other) == before
    (model,) = other.client.search_logged_models([other.experiment_id])
    assert (model.status, model.tags["noam.fingerprint"]) == (LoggedModelStatus.READY, fingerprint_of_folder())
    ids = {run.info.run_id for run in filled.runs()}
    assert not ids & {run.info.run_id for run in other.runs()}
    texts = json.dumps([run.data.tags for run in other.runs() for key in OWN if not run.data.tags.pop(key, None) or True])
    assert not [identity for identity in ids if identity in texts]

    for _ in range(2):
        assert copy_all(to=other.uri) == 0
        assert copy_all(source=other.uri) == 0
    assert set(capsys.readouterr().out.splitlines()) == {"runs: 0 copied, 5 already there"}
    assert contents(filled) == contents(other) == before
    assert not any(OWN & run.data.tags.keys() for run in filled.runs())

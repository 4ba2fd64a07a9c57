"""The results of an execution in MLflow: complete, once, and of use without this project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stages import files, paths
from stages.execution import Execution
from stages.tracking import outbox, results
from stages.tracking.fingerprint import corpus_digest, fingerprint, fingerprint_of_folder, is_intact
from stages.tracking.model import needed_code
from stages.tracking.store import Store
from stages.tracking.sync import sync_one
from tests.tracking.lab import REPOSITORY, only_run

PREDICT = """
import json, sys
import mlflow
model = mlflow.pyfunc.load_model(sys.argv[1])
answers = model.predict(["el perro", "xyz come"], params={"top_k": 2}) + model.predict([""])
print(json.dumps([answer.model_dump() for answer in answers]))
"""


@pytest.fixture
def finished(execution: Execution) -> Execution:
    outbox.set_fingerprint(execution, str(fingerprint_of_folder()))
    execution.close("finished")
    return execution


def artifacts(workspace: Path) -> list[str]:
    root = workspace / "mlartifacts"
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_all_of_it_is_there_and_sending_it_again_changes_nothing(
    store: Store, workspace: Path, finished: Execution
) -> None:
    sync_one(store, finished, workspace)
    first = artifacts(workspace)
    run = only_run(store)
    store.client.delete_tag(run.info.run_id, "noam.complete")
    sync_one(store, finished, workspace)
    assert artifacts(workspace) == first

    run = only_run(store)
    assert run.info.status == "FINISHED"
    train = files.read_json(paths.METRICS)["train"]
    del train["interval"]  # which the report has
    for key, value in train.items():
        assert run.data.metrics[f"final/train_{key}"] == value
    dataset = run.inputs.dataset_inputs[0].dataset
    lock = yaml.safe_load(paths.LOCK.read_text(encoding="utf-8"))
    assert (
        dataset.digest == lock["stages"]["prepare"]["deps"][0]["md5"] == files.md5_file(Path("data/raw/notebook.txt"))
    )
    assert len(run.inputs.dataset_inputs) == 1
    own = [name.split("/", 2)[2] for name in first if name.startswith(run.info.run_id)]
    for name in ("params.yaml", "dvc.lock", "figures/loss.png", "figures/loss.svg", "report/index.html"):
        assert name in own
    assert len(run.outputs.model_outputs) == 1
    assert len(store.client.search_logged_models([store.experiment_id])) == 1


def test_pictures_are_named_so_that_the_page_finds_them(store: Store, workspace: Path, finished: Execution) -> None:
    sync_one(store, finished, workspace)
    run = only_run(store)
    names = [Path(one.path).name for one in store.client.list_artifacts(run.info.run_id, "images")]
    assert len(names) == 8  # two heads for each of two prompts, large and small
    for name in names:
        key, word, step, _, time, identity, *small = name.rpartition(".")[0].split("+")
        assert key.startswith("attention~p")
        assert (word, step) == ("step", "0")
        assert int(time) == finished.events()[0]["t"]
        assert len(identity) == 36
        assert small in ([], ["compressed"])
    assert run.data.tags["mlflow.loggedImages"] == "True"


def test_next_words_are_tables(store: Store, workspace: Path, finished: Execution) -> None:
    sync_one(store, finished, workspace)
    run = only_run(store)
    listed = json.loads(run.data.tags["mlflow.loggedArtifacts"])
    assert listed == [{"path": name, "type": "table"} for name in results.TABLES]
    folder = Path(store.client.download_artifacts(run.info.run_id, "", str(workspace.parent)))
    ranked = files.read_json(folder / results.NEXT_WORDS_RANKED)
    assert ranked["columns"] == ["place", "word", "prompt", "rank", "probability"]
    first = files.read_json(paths.EVALUATION / "next_words.json")[1]["next"][0]
    name = "[bos] un gato come"
    assert [f"{name} 1", first["word"], name, 1, first["probability"]] in ranked["data"]
    short = files.read_json(folder / results.NEXT_WORDS)
    assert [row[0] for row in short["data"]] == ["[bos]", name]


def test_the_model_answers_elsewhere_without_pickle(
    store: Store, workspace: Path, finished: Execution, tmp_path: Path
) -> None:
    sync_one(store, finished, workspace)
    model = store.client.search_logged_models([store.experiment_id])[0]
    assert (str(model.status), model.source_run_id) == ("READY", only_run(store).info.run_id)
    place = workspace / "mlartifacts/models" / model.model_id / "artifacts"
    environment = {**os.environ, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    command = [sys.executable, "-W", "ignore", "-c", PREDICT, str(place)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    answers = json.loads(done.stdout.splitlines()[-1])
    assert [len(answer["next"]) for answer in answers] == [2, 2, 5]
    assert [answer["unknown"] for answer in answers] == [[], ["xyz"], []]
    assert not list(place.rglob("*.pkl"))
    requirements = (place / "requirements.txt").read_text(encoding="utf-8").split()
    assert {line.partition("==")[0] for line in requirements} >= {"mlflow", "torch", "safetensors"}
    shipped = {path.relative_to(place / "code").as_posix() for path in (place / "code").rglob("*.py")}
    assert "stages/model/predict.py" in shipped
    assert not [name for name in shipped if name.startswith(("stages/tracking", "stages/training", "stages/analysis"))]


def test_a_model_left_half_made_is_finished_not_doubled(store: Store, workspace: Path, finished: Execution) -> None:
    sync_one(store, finished, None)
    run = only_run(store)
    store.client.create_logged_model(store.experiment_id, name="noam-lm", source_run_id=run.info.run_id)
    sync_one(store, finished, workspace)
    models = store.client.search_logged_models([store.experiment_id])
    assert [str(model.status) for model in models] == ["READY"]
    assert [one.model_id for one in only_run(store).outputs.model_outputs] == [models[0].model_id]


def test_code_that_predicting_needs_is_found_through_its_imports() -> None:
    names = {path.relative_to(REPOSITORY).as_posix() for path in needed_code(REPOSITORY)}
    assert {"stages/__init__.py", "stages/model/predict.py", "stages/model/storage.py", "stages/errors.py"} <= names
    assert "stages/cli.py" not in names


def test_a_fingerprint_changes_with_results_and_with_nothing_else(workspace: Path) -> None:
    text = paths.LOCK.read_text(encoding="utf-8")
    before = fingerprint(text)
    assert before == fingerprint_of_folder(workspace)
    content = yaml.safe_load(text)
    content["stages"]["train"]["cmd"] = "python3 -m stages.train"
    content["stages"]["track"] = {"cmd": "x", "outs": [{"path": "reports/tracked.json", "md5": "0"}]}
    assert fingerprint(yaml.safe_dump(content)) == before
    content["stages"]["evaluate"]["outs"][1]["md5"] = "0" * 32
    assert fingerprint(yaml.safe_dump(content)) not in (before, None)
    content["stages"]["train"]["outs"][0]["md5"] = "1" * 32  # evaluate has not run since
    assert fingerprint(yaml.safe_dump(content)) is None
    del content["stages"]["plots"]
    assert fingerprint(yaml.safe_dump(content)) is None
    assert fingerprint("a: [") is None
    assert corpus_digest(text, "data/raw/notebook.txt") == files.md5_file(Path("data/raw/notebook.txt"))
    assert corpus_digest(text, "other") is None


def test_results_that_are_being_made_anew_are_not_intact(workspace: Path) -> None:
    assert is_intact(workspace)
    files.write_text(paths.HISTORY, "[]\n")
    assert not is_intact(workspace)
    shutil.rmtree(paths.MODEL)
    assert not is_intact(workspace)


def test_dvc_lock_has_nothing_of_what_an_earlier_run_has_tracked(
    store: Store, workspace: Path, finished: Execution
) -> None:
    content = yaml.safe_load(paths.LOCK.read_text(encoding="utf-8"))
    earlier = {"cmd": "python -m stages.track", "deps": [{"path": str(paths.METRICS), "md5": "0"}]}
    files.write_text(paths.LOCK, yaml.safe_dump(content | {"stages": content["stages"] | {"track": earlier}}))
    sync_one(store, finished, workspace)
    (sent,) = (workspace / "mlartifacts").rglob("dvc.lock")
    assert yaml.safe_load(sent.read_text(encoding="utf-8")) == content

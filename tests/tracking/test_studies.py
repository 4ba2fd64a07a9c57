"""Studies in MLflow: a run with the report, members found by their results, and nothing twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mlflow.entities import Run

from stages import files
from stages.analysis.comparison import compare
from stages.analysis.question import Question
from stages.analysis.study_text import json_of
from stages.errors import ArtifactError
from stages.params import Params, load_params
from stages.tracking import outbox
from stages.tracking.fingerprint import fingerprint_of_folder
from stages.tracking.store import Store
from stages.tracking.studies import send_study
from stages.tracking.sync import sync_all, sync_one
from tests.tracking.lab import run_stage, set_params, train_execution, write_results

NAMES = ["warmup=40", "warmup=400"]


def finish(workspace: Path, store: Store | None, **params: Any) -> str:
    """A complete run, or several replicas, with these parameters; in the store or in the outbox. Its fingerprint."""
    set_params(workspace, **params)
    write_results(workspace, seed=load_params(Params).seed)
    execution = train_execution()
    fingerprint = str(fingerprint_of_folder())
    outbox.set_fingerprint(execution, fingerprint)
    execution.close("finished")
    if store is None:
        outbox.keep(execution, workspace)
    else:
        sync_one(store, execution, workspace)
    return fingerprint


def write_report(
    folder: Path, fingerprints: dict[str, str], seeds: Sequence[int], losses: Sequence[float] = (1, 2)
) -> None:
    """The report of a study whose variants differ in the warm-up, as `noam study` writes it."""
    labels = [name.removeprefix("warmup=") for name in fingerprints]
    question = Question(
        "toy", "train.loss", "lower", next(iter(fingerprints)), {"warmup": labels}, text="Is it needed?"
    )
    nothing = dict.fromkeys(("diverged_at", "steps_to_target", "seconds_to_target"), float("nan"))
    runs = pd.DataFrame(
        {"variant": name, "seed": seed, "warmup": label, "value": loss + seed / 100, "start": 3.0, **nothing}
        for name, label, loss in zip(fingerprints, labels, losses, strict=True)
        for seed in seeds
    )
    files.write_json(folder / "results.json", json_of(compare(runs, question, resamples=99)))
    members = [
        {"variant": name, "levels": {"warmup": label}, "experiment": "", "fingerprint": one, "seeds": list(seeds)}
        for (name, one), label in zip(fingerprints.items(), labels, strict=True)
    ]
    files.write_json(folder / "members.json", members)
    files.write_text(folder / "index.html", "<!doctype html><title>Study</title>\n")
    files.write_bytes(folder / "figures" / "curves.png", b"curves")


@pytest.fixture
def fingerprints(store: Store, workspace: Path) -> dict[str, str]:
    """Of two variants with two seeds each, which are in the store beside a run that is in no study."""
    finish(workspace, store, warmup=40000, seed=0)
    return {
        name: finish(workspace, store, warmup=int(name.removeprefix("warmup=")), seed=10, replicas=2) for name in NAMES
    }


@pytest.fixture
def folder(workspace: Path, fingerprints: dict[str, str]) -> Path:
    """The report of a study over them."""
    folder = workspace / "reports/studies/toy"
    write_report(folder, fingerprints, [10, 11])
    return folder


def study_run(store: Store, name: str = "toy") -> Run:
    """The run of a study, of which there is one."""
    (found,) = store.tagged("noam.study", name)
    return store.client.get_run(found.info.run_id)


def members(store: Store, study: str = "toy") -> dict[str, list[str]]:
    """Names of a study's members by variant, in their order."""
    found: dict[str, list[str]] = {}
    runs = [
        run for run in store.runs() if f"noam.study.{study}" in run.data.tags and run.info.lifecycle_stage == "active"
    ]
    for run in sorted(runs, key=lambda run: run.data.tags[f"noam.place.{study}"]):
        found.setdefault(run.data.tags[f"noam.study.{study}"], []).append(run.info.run_name.partition(" · d_model")[0])
    return found


def test_a_study_has_a_run_and_marks_its_members(store: Store, folder: Path) -> None:
    assert send_study(store, folder) == "MLflow: study toy, 2 of 2 variants, 4 runs"
    assert members(store) == {
        name: [f"{name} · seed=10", f"{name} · seed=11", f"{name} · seeds 10–11"] for name in NAMES
    }
    places = sorted((run.data.tags["noam.place.toy"], run.data.tags["noam.study.toy"]) for run in _members(store))
    assert [variant for _, variant in places] == NAMES * 3  # seed by seed, then the summaries
    assert {round(run.data.metrics["study/warmup_log10"], 4) for run in _members(store)} == {1.6021, 2.6021}

    run = study_run(store)
    assert (run.info.run_name, run.info.status) == ("study toy", "FINISHED")
    assert run.info.start_time == min(one.info.start_time for one in _members(store))
    assert run.info.end_time == max(one.info.end_time for one in _members(store))
    assert (run.data.tags["noam.role"], "noam.execution" in run.data.tags) == ("study", False)
    assert run.data.metrics == {"study/variants": 2, "study/runs": 4, "study/diverged": 0, "study/missing": 0}
    assert listed(store, run) == {"index.html", "members.json", "results.json", "figures/curves.png"}

    note = run.data.tags["mlflow.note.content"]
    for statement in files.read_json(folder / "results.json")["statements"]:
        assert f": {statement['text']}" in note
    (head,) = [one for one in _members(store) if "seeds" in one.info.run_name and "warmup=400 " in one.info.run_name]
    assert f"| [warmup=400](#/experiments/{store.experiment_id}/runs/{head.info.run_id}) | 2 | 2.1050 | " in note
    assert note.count("| baseline |") == 1
    assert f"/runs/{run.info.run_id}/artifacts/index.html)" in note
    assert "viewStateShareKey=study-toy&" in note


def _members(store: Store) -> Iterator[Run]:
    return (run for run in store.runs() if "noam.study.toy" in run.data.tags)


def listed(store: Store, run: Run, folder: str | None = None) -> set[str]:
    """The files of a run."""
    found = set()
    for entry in store.client.list_artifacts(run.info.run_id, folder):
        found |= listed(store, run, entry.path) if entry.is_dir else {entry.path}
    return found


def test_again_adds_nothing(store: Store, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    send_study(store, folder)
    before = [run.to_dictionary() for run in store.runs()]
    send_study(store, folder)
    assert [run.to_dictionary() for run in store.runs()] == before
    assert len(store.client.get_metric_history(study_run(store).info.run_id, "study/runs")) == 1
    assert sync_all() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "runs: 0 brought, 3 already there"


def test_another_report_takes_its_place(store: Store, workspace: Path, folder: Path) -> None:
    """More seeds of one variant, another one left out, a figure less."""
    send_study(store, folder)
    more = {"warmup=40": finish(workspace, store, warmup=40, seed=10, replicas=3)}
    shutil.rmtree(folder)
    write_report(folder, more, [10, 11, 12], [1])
    (folder / "figures/curves.png").rename(folder / "figures/ranks.png")
    assert send_study(store, folder) == "MLflow: study toy, 1 of 1 variants, 3 runs"
    assert members(store) == {
        "warmup=40": [*(f"warmup=40 · seed={seed}" for seed in (10, 11, 12)), "warmup=40 · seeds 10–12"]
    }
    run = study_run(store)
    assert (run.data.metrics["study/variants"], run.data.metrics["study/runs"]) == (1, 3)
    assert listed(store, run) == {"index.html", "members.json", "results.json", "figures/ranks.png"}
    assert "[warmup=400]" not in run.data.tags["mlflow.note.content"]
    assert run.info.end_time == max(one.info.end_time for one in _members(store))


def test_a_run_may_be_in_several_studies(store: Store, folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("other"))
    assert send_study(store, folder)
    assert send_study(store, folder.with_name("other"))
    assert members(store, "toy") == members(store, "other")
    assert len(store.tagged("noam.role", "study")) == 2


def test_members_that_are_not_there_are_named(store: Store, folder: Path) -> None:
    send_study(store, folder)
    (gone,) = [run for run in _members(store) if run.info.run_name.startswith("warmup=400 · seeds")]
    store.client.delete_run(gone.info.run_id)
    assert (
        send_study(store, folder)
        == "MLflow: study toy, 1 of 2 variants, 2 runs; not there, `noam sync` may bring them: warmup=400"
    )
    assert list(members(store)) == ["warmup=40"]
    assert "| warmup=400 (not in MLflow) |" in study_run(store).data.tags["mlflow.note.content"]


def test_what_the_user_wrote_stays(store: Store, folder: Path) -> None:
    send_study(store, folder)
    store.client.set_tag(study_run(store).info.run_id, "mlflow.note.content", "mine")
    send_study(store, folder)
    assert study_run(store).data.tags["mlflow.note.content"] == "mine"


def test_a_deleted_study_comes_back_as_another_run(store: Store, folder: Path) -> None:
    send_study(store, folder)
    store.client.delete_run(study_run(store).info.run_id)
    send_study(store, folder)
    assert sorted(run.info.lifecycle_stage for run in store.tagged("noam.study", "toy")) == ["active", "deleted"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("results.json", "{}", r"toy/results\.json: question: field required; `noam study report` writes it anew"),
        ("members.json", '[{"variant": 1}]', r"toy/members\.json: 0\.variant: input should be a valid string"),
        ("members.json", None, r"toy/members\.json: not there"),
    ],
)
def test_a_report_that_is_none(store: Store, workspace: Path, file: str, content: str | None, message: str) -> None:
    folder = workspace / "reports/studies/toy"
    write_report(folder, {"warmup=40": "f"}, [10, 11], [1])
    (folder / file).unlink()
    if content is not None:
        files.write_text(folder / file, content)
    with pytest.raises(ArtifactError, match=message):
        send_study(store, folder)
    assert list(store.runs()) == []


def test_the_process_brings_the_runs_and_then_the_study(store: Store, workspace: Path) -> None:
    pending = {
        name: finish(workspace, None, warmup=warmup, seed=0) for name, warmup in zip(NAMES, (40, 400), strict=True)
    }
    folder = Path("reports/studies/toy")
    write_report(folder, pending, [0])
    done = run_stage("stages.tracking.sync", "--study", str(folder))
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert messages[-1] == {"done": "MLflow: study toy, 2 of 2 variants, 2 runs"}, done.stderr
    assert members(store) == {name: [f"{name} · seed=0"] for name in NAMES}
    tags = store.client.get_experiment(store.experiment_id).tags
    assert "mlflow.sharedViewState.study-toy" in tags

    (folder / "results.json").unlink()
    again = run_stage("stages.tracking.sync", "--study", str(folder))
    assert again.returncode == 1
    assert json.loads(again.stdout.splitlines()[-1])["error"].startswith("reports/studies/toy/results.json: not there")

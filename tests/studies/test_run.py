"""`noam study run` with the real tools: it makes what `dvc exp run` would make, once, whatever interrupts it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.pipeline.project import Project
from tests.studies import small
from tests.studies.conftest import Copies
from tests.studies.running import (
    BASE,
    checkpoints,
    events,
    executions,
    experiments,
    journal,
    noam,
    overrides,
    progress,
    run_study,
    start_study,
    trees,
    wait_for,
)

pytestmark = pytest.mark.pipeline

TEN, FORTY = "small-warmup-10", "small-warmup-40"
UPDATES = 120 * 9


# --- what it makes ----------------------------------------------------------------------------------------------------


def test_a_variant_is_the_experiment_that_dvc_would_have_made(studied: Project, by_hand: Project) -> None:
    typed = experiments(by_hand)["typed"]
    assert experiments(studied).keys() == {TEN, FORTY}
    for name in ("dvc.lock", "params.yaml", "reports/metrics.json"):
        shown = [
            project.run("git", "show", f"{commit}:{name}").stdout
            for project, commit in ((studied, experiments(studied)[TEN]), (by_hand, typed))
        ]
        assert shown[0] == shown[1]
    assert trees(studied)[TEN] == trees(by_hand)["typed"] != trees(studied)[FORTY]


@pytest.mark.slow
def test_one_seed_and_another_arithmetic(fresh: Copies) -> None:
    """Single runs have no group around them; `native` comes after `portable` in the same process."""
    project = fresh()
    variants = {"first": {}, "second": {"numerics": "native"}}
    base = BASE | {"epochs": 5}
    small.write(project.root, base=base, factors=None, variants=variants, baseline="first", seeds=7)
    assert "2 ran 0 known 0 failed" in run_study(project)
    project.run("git", "checkout", "-q", "--", "small.yaml")
    project.run("dvc", "exp", "run", "-n", "typed", *overrides(**base, seed=7, numerics="native"))
    shown = [
        project.run("git", "show", f"{experiments(project)[name]}:dvc.lock").stdout
        for name in ("small-second", "typed", "small-first")
    ]
    assert shown[0] == shown[1] != shown[2]


def test_dvc_lists_and_compares_them(studied: Project) -> None:
    table = studied.run("dvc", "exp", "show", "--csv").stdout.splitlines()
    header = table[0].split(",")
    rows = {cells[0]: dict(zip(header, cells, strict=False)) for cells in (line.split(",") for line in table[1:])}
    assert {rows[name]["warmup"] for name in (TEN, FORTY)} == {"10", "40"}
    losses = [float(rows[name]["train.loss"]) for name in (TEN, FORTY)]
    assert losses[0] != losses[1]
    assert "train.loss_std" in header


def test_one_can_be_applied_and_made_a_branch(again: Project) -> None:
    again.run("dvc", "exp", "apply", FORTY)
    assert "warmup: 40" in (again.root / "params.yaml").read_text(encoding="utf-8")
    again.run("dvc", "checkout")
    assert json.loads((again.root / "reports/replicas.json").read_text())[1]["seed"] == 11
    # What says that MLflow has it is never in DVC's cache, whoever made the experiment.
    assert json.loads(again.run("dvc", "status", "--json").stdout) == {
        "track": [{"changed outs": {"reports/tracked.json": "deleted"}}]
    }
    again.run("dvc", "exp", "branch", FORTY, "good")
    assert again.run("git", "rev-parse", "good^{tree}").stdout.strip() == trees(again)[FORTY]


def test_others_get_it_by_push_and_pull(again: Project, tmp_path: Path) -> None:
    again.run("git", "init", "-q", "--bare", "-b", "main", str(tmp_path / "hub.git"))
    again.run("git", "remote", "add", "origin", str(tmp_path / "hub.git"))
    again.run("git", "push", "-q", "origin", "HEAD")
    again.run("dvc", "remote", "add", "-q", "-d", "--local", "store", str(tmp_path / "store"))
    again.run("dvc", "exp", "push", "origin", TEN)

    again.run("git", "clone", "-q", str(tmp_path / "hub.git"), str(tmp_path / "clone"))
    clone = Project(tmp_path / "clone")
    clone.run("dvc", "remote", "add", "-q", "-d", "--local", "store", str(tmp_path / "store"))
    clone.run("dvc", "exp", "pull", "origin", TEN)
    assert trees(clone) == {TEN: trees(again)[TEN]}
    clone.run("dvc", "exp", "apply", TEN)
    assert (clone.root / "data/model/replicas/11/weights.safetensors").is_file()


def test_each_seed_is_a_run_in_mlflow_with_the_name_of_its_experiment(studied: Project) -> None:
    runs = [run for run in studied.runs() if "seed" in run.data.params]
    found = {(run.data.params["warmup"], run.data.params["seed"]): run for run in runs if run.info.status == "FINISHED"}
    for warmup in ("10", "40"):
        for seed in ("10", "11"):
            assert found[warmup, seed].data.tags["dvc.experiment"] == f"small-warmup-{warmup}"
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_the_command_says_what_it_did_and_where_the_report_is(studied: Project) -> None:
    said = (studied.root / "first.txt").read_text(encoding="utf-8")
    assert said.startswith(f"study: 2 variants, 4 runs, {4 * UPDATES} updates\n")
    assert "2 variants run" in said
    assert "report: reports/studies/small/index.html" in said
    members = json.loads((studied.root / "reports/studies/small/members.json").read_text(encoding="utf-8"))
    assert [one["experiment"] for one in members] == [TEN, FORTY]
    assert not list((studied.root / ".dvc/tmp/exps").glob("noam-*"))
    assert not list((studied.root / ".runstate/checkpoints").glob("*"))


# --- once -------------------------------------------------------------------------------------------------------------


def test_what_is_done_is_never_done_again(again: Project) -> None:
    before, known = executions(again), experiments(again)
    assert run_study(again) == ("2 of 2 variants have been run: they are not run again\n0 ran 2 known 0 failed\n")
    assert (executions(again), experiments(again)) == (before, known)

    again.run("dvc", "exp", "remove", TEN)
    status = noam(again, "study", "status", "small.yaml").stdout
    assert "warmup=10  done: its experiment was removed, `noam study run` lists it again" in status
    run_study(again)
    assert (executions(again), experiments(again)) == (before, known)

    small.write(
        again.root, name="wider", base=BASE, factors={"warmup": [40, 10]}, seeds="10-11", baseline={"warmup": 40}
    )
    assert "2 of 2 variants have been run" in run_study(again)
    assert experiments(again)["wider-warmup-40"] == known[FORTY]
    assert executions(again) == before


def test_other_code_is_another_result_and_is_in_its_experiment(again: Project) -> None:
    """An edit that nobody has committed, as with `dvc exp run`."""
    measures = again.root / "stages/analysis/measures.py"
    original = measures.read_text(encoding="utf-8")
    measures.write_text(original.replace("**counted, ", '**counted, "tokens": 1048, '), encoding="utf-8")
    assert measures.read_text(encoding="utf-8") != original
    before = experiments(again)
    assert "2 ran 0 known 0 failed" in run_study(again)
    after = experiments(again)
    assert after.keys() - before.keys() == {f"{TEN}.2", f"{FORTY}.2"}
    assert {name: after[name] for name in before} == before
    assert '"tokens": 1048' in again.run("git", "show", f"{after[f'{TEN}.2']}:stages/analysis/measures.py").stdout
    metrics = json.loads(again.run("git", "show", f"{after[f'{TEN}.2']}:reports/metrics.json").stdout)
    assert metrics["train"]["tokens"] == 1048
    assert f"done: experiment {TEN}.2 " in noam(again, "study", "status", "small.yaml").stdout
    assert again.run("git", "status", "--porcelain", "-uno").stdout == " M stages/analysis/measures.py\n"


# --- interrupted ------------------------------------------------------------------------------------------------------


def kill_in_the_middle(project: Project) -> None:
    """With -9, when one run is over and the next has saved something."""
    process = start_study(project)
    wait_for(lambda: progress(project).get((10, 10)) == UPDATES and progress(project).get((10, 11), 0) > 0, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert 0 < progress(project)[10, 11] < UPDATES


def test_killed_and_run_again_it_is_the_study_that_nothing_stopped(fresh: Copies, studied: Project) -> None:
    project = fresh()
    kill_in_the_middle(project)
    first = {one["seed"]: one["id"] for one in executions(project) if one["parent"]}
    assert list((project.root / ".dvc/tmp/exps").glob("noam-*"))
    assert experiments(project) == {}

    assert "2 ran 0 known 0 failed" in run_study(project)
    assert trees(project) == trees(studied)
    assert not list((project.root / ".dvc/tmp/exps").glob("noam-*"))
    replicas = [one for one in executions(project) if one["parent"]]
    assert len(replicas) == 4
    assert {one["experiment"] for one in replicas} == {TEN, FORTY}
    assert events(project, first[10]) == ["finished"]
    assert events(project, first[11]) == ["resumed", "finished"]
    for one in replicas:
        steps = [entry["s"] for entry in journal(project, one["id"]) if "train/loss" in entry.get("m", {})]
        assert steps == sorted(set(steps))
    groups = [events(project, one["id"]) for one in executions(project) if not one["parent"]]
    assert groups == [["resumed", "trained", "finished"]] * 2


@pytest.mark.parametrize(("number", "to_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_asked_to_stop_it_saves_and_says_how_to_go_on(fresh: Copies, number: signal.Signals, to_group: bool) -> None:
    """Ctrl-C reaches all processes of the terminal, SIGTERM only the one that was started. Nobody runs a second one."""
    project = fresh()
    long = BASE | {"epochs": 20_000}
    small.write(project.root, base=long, factors={"warmup": [10, 40]}, seeds="10-11", baseline={"warmup": 10})
    process = start_study(project)
    wait_for(lambda: progress(project).get((10, 10), 0) > 0, process)

    second = noam(project, "study", "run", "small.yaml", check=False)
    assert second.returncode == 1
    assert second.stderr == (
        "error: another `noam study run` is under way in this workspace; `noam study status FILE` says how far it is\n"
    )
    status = noam(project, "study", "status", "small.yaml").stdout.splitlines()
    assert status[0].endswith("warmup=10  under way: 0 of 2 seeds are over")

    if to_group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + number
    assert output.endswith(f"error: stopped by {number.name}; the same command goes on from here\n")
    assert "Traceback" not in output
    assert progress(project)[10, 10] > 0
    assert not list((project.root / ".dvc/tmp/exps").glob("noam-*"))
    assert {events(project, one["id"])[-1] for one in executions(project)} == {"killed"}


# --- failures ---------------------------------------------------------------------------------------------------------


def test_what_fails_is_tried_twice_and_told_and_mended(fresh: Copies, studied: Project) -> None:
    """A checkpoint that was damaged after an interruption."""
    project = fresh()
    kill_in_the_middle(project)
    damaged = checkpoints(project)[10, 11]
    (damaged / "state.safetensors").write_bytes(b"nonsense")

    failed = noam(project, "study", "run", "small.yaml", check=False)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stdout + failed.stderr
    lines = failed.stdout.splitlines()
    assert sum(line.startswith("study: warmup=10, seed 11 failed: ") for line in lines) == 2
    assert "study: 1 run(s) failed and are tried once more" in lines
    (told,) = [line for line in lines if line.startswith("study: warmup=10 failed: seed 11: ")]
    assert "state.safetensors: not readable as a checkpoint" in told
    assert "1 variants run" in failed.stdout
    assert trees(project) == {FORTY: trees(studied)[FORTY]}
    status = noam(project, "study", "status", "small.yaml").stdout
    assert "warmup=10  failed: seed 11: " in status
    assert f"warmup=40  done: experiment {FORTY}" in status

    shutil.rmtree(damaged)
    assert "1 ran 1 known 0 failed" in run_study(project)
    assert trees(project) == trees(studied)
    assert "failed" not in noam(project, "study", "status", "small.yaml").stdout


def test_a_text_that_cannot_be_read_stops_only_its_variants(fresh: Copies) -> None:
    project = fresh()
    (project.root / "data/raw/bad.txt").write_bytes(b"\xff\n")
    (project.root / "data/raw/own.txt").write_text("uno dos\ntres cuatro\n", encoding="utf-8")
    texts = {"bad": {"corpus": "data/raw/bad.txt"}, "own": {"corpus": "data/raw/own.txt"}, "toy": {}}
    small.write(project.root, base=BASE | {"epochs": 3}, factors={"text": texts}, seeds=3, baseline={"text": "own"})
    said = run_study(project)
    assert "text=bad failed: prepare: data/raw/bad.txt, line 1: byte 0 (0xff) is not UTF-8" in said
    assert "2 ran 0 known 1 failed" in said
    assert experiments(project).keys() == {"small-text-own", "small-text-toy"}
    lock = project.run("git", "show", f"{experiments(project)['small-text-own']}:dvc.lock").stdout
    assert "path: data/raw/own.txt" in lock


# --- where it cannot be run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("without", ["git", "commits"])
def test_without_git_or_commits_it_is_refused_in_a_line(fresh: Copies, without: str) -> None:
    project = fresh()
    if without == "git":
        shutil.rmtree(project.root / ".git")
    else:
        project.run("git", "update-ref", "-d", "HEAD")
    ceiling = {"GIT_CEILING_DIRECTORIES": str(project.root.parent)}
    done = project.run(sys.executable, "-m", "stages.cli", "study", "run", "small.yaml", check=False, **ceiling)
    assert done.returncode == 1
    assert done.stderr == ("error: a study needs a git repository with a commit, on which DVC puts its experiments\n")
    assert done.stdout == ""


def test_a_name_that_is_no_study_gets_the_nearest(fresh: Copies) -> None:
    done = noam(fresh(), "study", "status", "warmup-tyo", check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: warmup-tyo: no such file, nor one of lr-sensitivity, ")
    assert done.stderr.endswith("(did you mean 'warmup-toy'?)\n")


def test_a_folder_with_an_accent_and_a_local_configuration(pristine: Project, tmp_path: Path) -> None:
    folder = tmp_path / "mi árbol"
    shutil.copytree(pristine.root, folder, symlinks=True)
    project = Project(folder)
    project.run("dvc", "remote", "add", "-q", "-d", "--local", "store", str(tmp_path / "store"))  # a section [core]
    local = (folder / ".dvc/config.local").read_bytes()
    small.write(folder, base=BASE | {"epochs": 3}, factors={"warmup": [10, 40]}, seeds=3, baseline={"warmup": 10})
    assert "2 ran 0 known 0 failed" in run_study(project)
    assert (folder / ".dvc/config.local").read_bytes() == local


def test_a_variant_with_other_code_is_run_there(fresh: Copies) -> None:
    project = fresh()
    before = project.run("git", "rev-parse", "HEAD").stdout.strip()
    rates = project.root / "stages/optim/schedules.py"
    code = rates.read_text(encoding="utf-8")
    assert "return float(factor * d_model**-0.5" in code
    rates.write_text(code.replace("return float(factor * ", "return float(2 * factor * "), encoding="utf-8")
    project.commit("twice the rate")
    small.write(
        project.root,
        base={**BASE, "epochs": 10, "warmup": 10},
        factors={"code": {"before": {"code": before}, "now": {}}},
        seeds="10-11",
        baseline={"code": "now"},
    )
    said = run_study(project)
    assert said.rstrip().endswith("2 ran 0 known 0 failed")
    listed = project.run("dvc", "exp", "list", "--all-commits", "--name-only").stdout.split()
    old, new = sorted((name for name in listed if name.startswith("small")), key=lambda name: "before" not in name)
    rate = "import sys; from stages.studies.collect import Results; from stages import paths; "
    rate += "print(Results.of(sys.argv[1]).read(paths.HISTORY)[0]['lr'])"
    commits = {
        line.split()[1].rsplit("/", 1)[1]: line.split()[0]
        for line in project.run(
            "git", "for-each-ref", "--format=%(objectname) %(refname)", "refs/exps"
        ).stdout.splitlines()
    }
    rates_of = [float(project.run(sys.executable, "-c", rate, commits[name]).stdout) for name in (old, new)]
    assert rates_of[1] == 2 * rates_of[0]
    assert run_study(project).rstrip().endswith("0 ran 2 known 0 failed")

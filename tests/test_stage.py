"""What every stage does around its work: the guard over its inputs, the state of git, and how it ends."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stages import stage as stage_module
from stages.errors import ArtifactError, ChangedInputError, CorpusError, ParamError, RepositoryError
from stages.execution import Execution
from stages.params import PrepareParams, TrainParams, VocabParams
from stages.stage import Stage, check_repository
from tests.conftest import Lab


def append(path: str, text: str = "# edited\n") -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


# --- the guard --------------------------------------------------------------------------------------------------------

EDITS: dict[str, Callable[[Lab], Any]] = {
    "params.yaml (lowercase)": lambda lab: lab.set(lowercase=False),
    "params.yaml (split_seed)": lambda lab: lab.set(split_seed=None),
    "params.yaml": lambda lab: append("params.yaml", "a: [\n"),
    "stages/prepare.py": lambda lab: append("stages/prepare.py"),
    "stages/text/reading.py": lambda lab: append("stages/text/reading.py"),
    "data/raw/notebook.txt": lambda lab: append("data/raw/notebook.txt", "otra\n"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_input_is_named(lab: Lab, name: str) -> None:
    stage = Stage("prepare", PrepareParams)
    stage.check_inputs()
    EDITS[name](lab)
    with pytest.raises(ChangedInputError) as caught:
        stage.check_inputs()
    assert str(caught.value) == (
        f"stage prepare: {name} changed while the stage ran; nothing was written. "
        "Run `dvc repro` again to use the new state."
    )


@pytest.mark.parametrize(
    "edit",
    [
        lambda lab: append("params.yaml"),
        lambda lab: lab.set(warmup=7, top_k="nonsense"),
        lambda lab: lab.set(split_seed=0.0),
        lambda lab: append("stages/model/blocks.py"),
        lambda lab: os.utime("data/raw/notebook.txt"),
    ],
    ids=["comment", "keys of other stages", "the same value", "code of other stages", "time of change"],
)
def test_edits_that_the_stage_does_not_read_pass(lab: Lab, edit: Callable[[Lab], Any]) -> None:
    stage = Stage("prepare", PrepareParams)
    edit(lab)
    stage.check_inputs()
    assert stage.params == PrepareParams()


def test_files_of_a_folder_that_come_and_go_are_named(lab: Lab) -> None:
    lab.run("prepare")
    stage = Stage("vocab", VocabParams)
    Path("data/prepared/more.txt").write_text("a\n", encoding="utf-8")
    Path("data/prepared/test.txt").unlink()
    with pytest.raises(ChangedInputError, match=r"data/prepared/more\.txt, data/prepared/test\.txt changed"):
        stage.check_inputs()


def test_a_large_input_is_watched_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "_HASHED_BYTES", 10)
    stage = Stage("prepare", PrepareParams)
    stage.check_inputs()
    append("data/raw/notebook.txt", "otra\n")
    with pytest.raises(ChangedInputError, match=r"data/raw/notebook\.txt"):
        stage.check_inputs()


@pytest.mark.parametrize(
    ("name", "called", "outputs"),
    [
        ("prepare", "assign", ["data/prepared", "reports/corpus.json"]),
        ("vocab", "save_ids", ["data/vocab"]),
        ("train", "count_updates", ["data/model", "reports/history.json", "reports/validation.json"]),
        ("evaluate", "prefix_tree_floor", ["data/evaluation", "reports/metrics.json"]),
    ],
)
def test_an_edit_half_way_leaves_the_old_outputs(
    small_lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str, called: str, outputs: list[str]
) -> None:
    small_lab.run("prepare", "vocab", "train", "evaluate")
    for path in small_lab.bytes_of(*outputs):
        Path(path).write_bytes(b"old")
    before = small_lab.bytes_of("data", "reports")
    module = importlib.import_module(f"stages.{name}")
    original = getattr(module, called)

    def edited_meanwhile(*arguments: Any, **named: Any) -> Any:
        append(f"stages/{name}.py")
        return original(*arguments, **named)

    monkeypatch.setattr(module, called, edited_meanwhile)
    with pytest.raises(ChangedInputError, match=rf"stage {name}: stages/{name}\.py changed"):
        small_lab.run(name)
    assert small_lab.bytes_of("data", "reports") == before


def test_a_stage_checks_the_keys_of_all_before_it_starts(lab: Lab) -> None:
    lab.set(warmup=0)
    with pytest.raises(ParamError, match="warmup = 0"):
        Stage("prepare", PrepareParams)


def test_an_input_that_is_not_there_is_named(lab: Lab) -> None:
    with pytest.raises(ArtifactError, match="data/vocab: not there, yet stage train reads it"):
        Stage("train", TrainParams)
    lab.set(corpus="./nope.txt")
    with pytest.raises(CorpusError, match=r"^nope\.txt: no such file or folder; `corpus` in params\.yaml names it$"):
        Stage("prepare", PrepareParams)


def test_a_stage_takes_its_own_parameters() -> None:
    with pytest.raises(TypeError, match="stage prepare reads PrepareParams, not VocabParams"):
        Stage("prepare", VocabParams)


def test_a_corpus_may_be_named_by_a_number(lab: Lab) -> None:
    Path("1984").write_text("hola\n", encoding="utf-8")
    lab.set(corpus=1984)
    lab.run("prepare")
    assert lab.read("reports/corpus.json")["file"] == "1984"


# --- git --------------------------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("depth", [["--depth", "1"], []])
def test_queued_experiments_of_a_shallow_clone_are_refused(
    lab: Lab, depth: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = lab.folder / "origin"
    git(lab.folder, "init", "-q", "origin")
    for message in ("one", "two"):
        git(origin, "commit", "-q", "--allow-empty", "-m", message)
    git(lab.folder, "clone", "-q", *depth, origin.as_uri(), "clone")
    monkeypatch.chdir(lab.folder / "clone")
    check_repository()  # in the workspace itself DVC loses nothing
    temporary = Path(".dvc/tmp/exps/standalone/tmpabc")
    temporary.mkdir(parents=True)
    monkeypatch.chdir(temporary)
    for root in (None, lab.folder / "clone"):
        if root:
            monkeypatch.setenv("DVC_ROOT", str(root))
        if depth:
            with pytest.raises(RepositoryError, match=r"shallow clone.*run `git fetch --unshallow` first"):
                check_repository()
        else:
            check_repository()


# --- the end of a stage -----------------------------------------------------------------------------------------------

SCRIPT = """
import signal, sys, time
from stages.errors import LabError
from stages.execution import Execution
from stages.params import Params
from stages.stage import run

def main():
    Execution.create("trained", Params().model_dump()).make_current()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background inherits as ignored
    print("ready", flush=True)
    {body}

run(main)
"""


def start(lab: Lab, body: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT.format(body=body)]
    return subprocess.Popen(
        command, cwd=lab.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ends() -> list[tuple[str, str]]:
    (execution,) = Execution.all()
    assert Execution.current() is None
    return [(event["event"], event.get("message", "")) for event in execution.events()]


def test_a_users_error_is_one_line(lab: Lab) -> None:
    process = start(lab, "raise LabError('año: too short')")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (1, "ready\n", "error: año: too short\n")
    assert ends() == [("failed", "año: too short")]


def test_a_fault_of_ours_keeps_its_traceback(lab: Lab) -> None:
    process = start(lab, "{}['x']")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" in err
    assert err.endswith("KeyError: 'x'\n")
    assert ends() == [("failed", "KeyError: 'x'")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_the_journal_knows(lab: Lab, number: signal.Signals) -> None:
    process = start(lab, "time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, f"error: stopped by {number.name}\n")
    assert ends() == [("killed", f"stopped by {number.name}")]


def test_an_error_is_not_written_to_an_execution_of_an_earlier_dvc(lab: Lab) -> None:
    script = SCRIPT.format(body="pass")
    # Started by another parent than the failing stage, which is started by this process.
    subprocess.run(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])", script],
        check=True,
    )
    lab.set(warmup=0)
    done = lab.command("stages.prepare")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    (execution,) = Execution.all()
    assert execution.events() == []
    assert Execution.current() is not None


def test_a_stage_that_ends_well_leaves_the_execution_open(lab: Lab) -> None:
    process = start(lab, "pass")
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)
    (execution,) = Execution.all()
    assert Execution.current() is not None
    assert execution.events() == []


def test_training_that_is_stopped_leaves_no_half_written_output(small_lab: Lab) -> None:
    small_lab.run("prepare", "vocab")
    small_lab.set(epochs=1_000_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "stages.train"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("train: update 0 of 9000000")
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "error: stopped by SIGTERM\n")
    assert ends() == [("killed", "stopped by SIGTERM")]
    assert {
        name for name in small_lab.bytes_of("data", "reports") if "vocab" not in name and "prepared" not in name
    } == {
        "data/raw/notebook.txt",
        "reports/corpus.json",
    }


@pytest.mark.parametrize(("eval_every", "at"), [(1, 1), (3, 2)])  # found by a measurement, or by an update
def test_training_that_diverges_is_a_result_and_one_warning(small_lab: Lab, eval_every: int, at: int) -> None:
    small_lab.set(optimizer="sgd", schedule="none", lr=1e30, batch_size=64, eval_every=eval_every)
    small_lab.run("prepare", "vocab")
    done = small_lab.command("stages.train")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "diverged" in line]
    assert line.startswith(f"train: warning: diverged at update {at}: ")
    assert "is not finite, at rate 1e+30; lower factor, lr or decay, raise warmup, or set clip" in line
    (execution,) = Execution.all()
    assert [(event["event"], event.get("message")) for event in execution.events()] == [
        ("diverged", line.removeprefix("train: warning: ")),
        ("trained", None),
    ]
    about = small_lab.read("data/model/config.json")
    assert about["diverged_at"] == at
    assert about["last_finite"]["step"] == 0
    assert about["updates"] == len(small_lab.read("reports/history.json")) == 1
    assert [row["step"] for row in small_lab.read("reports/validation.json")] == [0]


def test_a_model_too_large_for_the_memory_is_one_line(small_lab: Lab) -> None:
    small_lab.run("prepare", "vocab")
    small_lab.set(d_model=1_000_000, n_heads=1)
    done = small_lab.command("stages.train")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: out of memory")
    assert "Traceback" not in done.stderr

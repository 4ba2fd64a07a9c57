"""The command `noam`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from stages import files, paths
from stages.analysis import freshness
from stages.cli import main
from tests.conftest import Lab

Answer = tuple[int, str, str]


@pytest.fixture
def noam(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs `noam …` in the current folder; gives the exit code, and what it wrote on both channels."""

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["noam", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return (int(end.value.code or 0), *capsys.readouterr())

    return run


def test_next_words_as_text(trained: Lab, noam: Callable[..., Answer]) -> None:
    code, out, err = noam("predict", "Un gato COME")
    lines = out.splitlines()
    assert (code, err, lines[0]) == (0, "", "[bos] un gato come")
    assert len(lines) == 6
    probabilities = [float(line.split()[1]) for line in lines[1:]]
    assert probabilities == sorted(probabilities, reverse=True)


def test_next_words_as_json(trained: Lab, noam: Callable[..., Answer]) -> None:
    code, out, err = noam("predict", "--json", "--top", "99", "el dragón")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert (answer["prompt"], answer["tokens"], answer["unknown"]) == (
        "el dragón",
        ["[bos]", "el", "[unk]"],
        ["dragón"],
    )
    assert len(answer["next"]) == 17
    assert sum(word["probability"] for word in answer["next"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "read", "unknown"),
    [
        ("el dragón come", "[bos] el [unk] come", "dragón"),
        ("DRAGÓN", "[bos] [unk]", "dragón"),
        ("[eos] \ufeffel", "[bos] [unk] el", "[eos]"),
        ("", "[bos]", ""),
        ("   ", "[bos]", ""),
    ],
)
def test_unknown_words_are_reported(
    trained: Lab, noam: Callable[..., Answer], text: str, read: str, unknown: str
) -> None:
    code, out, err = noam("predict", text)
    assert (code, out.splitlines()[0]) == (0, read)
    assert err == (f"unknown to the model, read as [unk]: {unknown}\n" if unknown else "")


def test_the_tables_of_the_run_say_the_same(trained: Lab, noam: Callable[..., Answer]) -> None:
    _, out, _ = noam("predict", "--json", "--top", "15", "un gato come")
    assert json.loads(out) == trained.read("data/evaluation/next_words.json")[1]


def test_the_summary(trained: Lab, noam: Callable[..., Answer]) -> None:
    code, out, _ = noam("summary")
    measured = trained.read("reports/metrics.json")["train"]
    best = trained.read("data/evaluation/next_words.json")[0]["next"][0]
    assert code == 0
    assert "measured on  training text (no held-out text" in out
    assert f"train loss   {measured['loss']:.4f} nats/token" in out
    assert f"{measured['excess']:.4f} above the floor of this text" in out
    assert f"after [bos]  {best['word']} ({best['probability']:.2f})" in out
    assert "reports/index.html" in out
    assert "make ui" in out


def test_the_summary_of_replicas_and_of_a_model_that_diverged(small_lab: Lab, noam: Callable[..., Answer]) -> None:
    small_lab.set(replicas=3)
    small_lab.run("prepare", "vocab", "train", "evaluate")
    found = small_lab.read("reports/metrics.json")["train"]
    code, out, err = noam("summary")
    assert (code, err) == (0, "")
    bounds = f"95% interval of the mean {found['loss_low']:.4f} to {found['loss_high']:.4f}"
    spread = (
        f"{found['loss']:.4f} ± {found['loss_std']:.4f} nats/token (mean ± standard deviation of 3 seeds; {bounds})"
    )
    assert f"train loss   {spread}\n" in out

    replicas = small_lab.read("reports/replicas.json")
    replicas[1] |= {"diverged_at": 7, "last_finite": None}
    replicas[1]["train"] |= {"loss": None, "excess": None, "perplexity": None}
    files.write_json(small_lab.folder / paths.REPLICAS, replicas)
    _, out, _ = noam("summary")
    assert "diverged     1 of 3: seed 1 at update 7\n" in out
    files.write_json(small_lab.folder / paths.REPLICAS, replicas[1:2])
    code, out, _ = noam("summary")
    assert code == 0
    assert "train loss   not finite\ndiverged     at update 7\n" in out


def test_the_summary_warns_of_what_changed_since(
    trained: Lab, noam: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "outdated", lambda: ["params.yaml (warmup)", *"bcdefg"])
    code, out, err = noam("summary")
    assert code == 0
    assert "train loss" in out
    assert err == (
        "warning: changed since these numbers were made: params.yaml (warmup), b, c, d, e and 2 more; "
        "`dvc repro` brings all up to date\n"
    )
    monkeypatch.setattr(freshness, "outdated", list)
    assert noam("summary")[2] == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("predict", "el"), "error: data/model/config.json: not there; `dvc repro` makes it"),
        (("summary",), "error: reports/metrics.json: not there; `dvc repro` makes it"),
    ],
)
def test_before_the_first_run_the_message_says_what_to_do(
    lab: Lab, noam: Callable[..., Answer], arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = noam(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith(words)
    assert err.count("\n") == 1


@pytest.mark.parametrize("top", ["0", "-1", "x", "1.5"])
def test_a_count_is_a_whole_number_from_one(lab: Lab, noam: Callable[..., Answer], top: str) -> None:
    code, _, err = noam("predict", "el", "--top", top)
    assert code == 2
    assert f"{top!r}: expected a whole number ≥ 1" in err


def test_it_runs_as_a_command_whatever_the_locale(trained: Lab) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from stages.cli import main; main()", "predict", "el dragón"],
        env={"LC_ALL": "C", "PATH": "/usr/bin"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr.decode("utf-8")) == (0, "unknown to the model, read as [unk]: dragón\n")
    assert done.stdout.startswith(b"[bos] el [unk]\n")


@pytest.mark.parametrize("name", ["metrics", "replicas"])
def test_summary_of_damaged_metrics_is_one_line(trained: Lab, name: str) -> None:
    path = trained.folder / f"reports/{name}.json"
    whole = path.read_text(encoding="utf-8")
    path.write_text("[]", encoding="utf-8")
    try:
        done = trained.command("stages.cli", "summary")
    finally:
        path.write_text(whole, encoding="utf-8")
    assert done.returncode == 1
    assert done.stderr == f"error: reports/{name}.json: not what stage evaluate writes; `dvc repro` makes it anew\n"


def test_a_port_that_cannot_be_is_refused(trained: Lab) -> None:
    done = trained.command("stages.cli", "ui", "--port", "80000")
    assert done.returncode == 2
    assert "'80000': expected a number from 1 to 65535" in done.stderr

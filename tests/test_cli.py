"""The command `noam`."""

from __future__ import annotations

import io
import json
import math
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch

from stages import files, paths
from stages.analysis import freshness
from stages.cli import main
from tests.conftest import Answer, Lab


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


@pytest.fixture
def diverged(trained: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trained model, as it would be after its numbers ceased to be finite at update 7."""
    for name in ("data/model", "data/vocab"):
        shutil.copytree(trained.folder / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    weights = safetensors.torch.load_file(tmp_path / "data/model/weights.safetensors")
    weights["output.bias"].fill_(float("nan"))
    safetensors.torch.save_file(weights, tmp_path / "data/model/weights.safetensors")
    about = files.read_json(tmp_path / "data/model/config.json") | {"diverged_at": 7}
    files.write_json(tmp_path / "data/model/config.json", about)


@pytest.mark.parametrize(
    "arguments", [("predict", "el"), ("predict", "el", "--json"), ("generate",), ("generate", "--json"), ("score", "-")]
)
def test_a_model_that_diverged_says_so(
    diverged: None, noam: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(b"el perro\n")))
    code, out, err = noam(*arguments)
    assert code == 1
    assert "nan" not in out
    assert err.startswith("error: the model's probabilities are not finite: it diverged at update 7 of its training")
    assert err.count("\n") == 1


def test_a_generated_text_is_decided_by_its_seed(trained: Lab, noam: Callable[..., Answer]) -> None:
    code, out, err = noam("generate", "Un gato")
    assert (code, err) == (0, "")
    assert out.startswith("un gato")
    assert out.count("\n") == 1
    assert noam("generate", "Un gato", "--seed", "0") == (code, out, err)
    several = [noam("generate", "Un gato", "--seed", str(seed))[1] for seed in range(6)]
    assert len(set(several)) > 1
    assert noam("generate", "Un gato", "--count", "6")[1] == "".join(several)


def test_a_generated_text_as_json(trained: Lab, noam: Callable[..., Answer]) -> None:
    code, out, err = noam("generate", "el dragón", "--json", "--count", "2", "--seed", "3", "--max-tokens", "4")
    answer = json.loads(out)
    assert (code, err, answer["prompt"], answer["unknown"]) == (0, "", "el dragón", ["dragón"])
    assert [sample["seed"] for sample in answer["samples"]] == [3, 4]
    for sample in answer["samples"]:
        assert sample["text"] == " ".join(["el [unk]", *sample["tokens"]])
        assert sample["ended"] == ("max_tokens" if len(sample["tokens"]) == 4 else "[eos]")
        assert not {"[pad]", "[bos]", "[eos]", "[unk]"} & set(sample["tokens"])
    text = noam("generate", "el dragón", "--seed", "3", "--max-tokens", "4")
    assert text[1:] == (f"{answer['samples'][0]['text']}\n", "unknown to the model, read as [unk]: dragón\n")


def test_greedy_text_follows_the_predictions(trained: Lab, noam: Callable[..., Answer]) -> None:
    _, out, _ = noam("generate", "un", "--temperature", "0", "--max-tokens", "1")
    words = [word["word"] for word in json.loads(noam("predict", "un", "--json", "--top", "99")[1])["next"]]
    best = next(word for word in words if word not in ("[pad]", "[bos]", "[unk]"))
    assert out == ("un\n" if best == "[eos]" else f"un {best}\n")
    assert noam("generate", "un", "--top-k", "1", "--max-tokens", "1")[1] == out
    assert noam("generate", "un", "--top-p", "1e-9", "--max-tokens", "1")[1] == out


def test_each_token_is_shown_as_it_comes(
    trained: Lab, noam: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Terminal(io.StringIO):
        def flush(self) -> None:
            seen.append(self.getvalue())

    terminal = Terminal()
    monkeypatch.setattr(sys, "argv", ["noam", "generate", "un gato", "--max-tokens", "3", "--temperature", "5"])
    monkeypatch.setattr(sys, "stdout", terminal)
    with pytest.raises(SystemExit):
        main()
    words = terminal.getvalue().split()
    assert len(words) > 3
    parts = [" ".join(words[:count]) for count in range(2, len(words) + 1)]
    assert list(dict.fromkeys(seen))[: len(parts)] == parts


def test_text_beyond_the_window_is_left_out_and_said_once(small_lab: Lab, noam: Callable[..., Answer]) -> None:
    small_lab.set(max_length=4)
    small_lab.run("prepare", "vocab", "train")
    note = "note: the model reads the last 4 tokens; older ones are left out\n"
    code, out, err = noam("generate", "el perro come un hueso", "--count", "3")
    assert (code, err) == (0, note)
    assert all(line.startswith("el perro come un hueso") for line in out.splitlines())
    code, out, err = noam("predict", "el perro come un hueso")
    assert (code, out.splitlines()[0]) == (0, "perro come un hueso")
    assert err == "the model reads 4 tokens; the first 2 are left out\n"


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--temperature", "-0.1", "a number ≥ 0"),
        ("--temperature", "nan", "a number ≥ 0"),
        ("--temperature", "inf", "a number ≥ 0"),
        ("--temperature", "x", "a number ≥ 0"),
        ("--top-k", "0", "a whole number ≥ 1"),
        ("--top-k", "2.5", "a whole number ≥ 1"),
        ("--top-p", "0", "a number > 0 and ≤ 1"),
        ("--top-p", "1.1", "a number > 0 and ≤ 1"),
        ("--seed", "-1", "a number from 0 to 4294967295"),
        ("--seed", "4294967296", "a number from 0 to 4294967295"),
        ("--count", "0", "a number from 1 to 1000"),
        ("--count", "9" * 5000, "a number from 1 to 1000"),
        ("--max-tokens", "0", "a number from 1 to 10000"),
    ],
)
def test_an_option_out_of_range_is_refused(
    lab: Lab, noam: Callable[..., Answer], option: str, value: str, allowed: str
) -> None:
    code, out, err = noam("generate", f"{option}={value}")
    assert (code, out) == (2, "")
    assert f"argument {option}: '{value[:59]}" in err
    assert f"expected {allowed}" in err.splitlines()[-1]


def test_what_always_gives_the_same_text_is_not_done_twice(lab: Lab, noam: Callable[..., Answer]) -> None:
    code, _, err = noam("generate", "--temperature", "0", "--count", "2")
    assert code == 1
    assert err == "error: --count 2: expected 1 with --temperature 0, which always gives the same text\n"


@pytest.mark.parametrize("command", ["predict", "generate"])
def test_a_prompt_that_is_not_utf8_is_refused(lab: Lab, noam: Callable[..., Answer], command: str) -> None:
    code, _, err = noam(command, "drag\udcf3n")
    assert code == 2
    assert "expected UTF-8" in err.splitlines()[-1]


LINES = "Un gato come\n\nel dragón come\r\n   \nel\n"


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "lines.txt"
    path.write_bytes(LINES.encode("utf-8"))
    return str(path)


def test_scores_as_json_lines(trained: Lab, noam: Callable[..., Answer], text: str) -> None:
    code, out, err = noam("score", "--json", text)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(line["line"], line["text"]) for line in lines] == list(
        enumerate(["Un gato come", "", "el dragón come", "   ", "el"], start=1)
    )
    assert [(line["tokens"], line["unknown"]) for line in lines] == [(4, 0), (0, 0), (4, 1), (0, 0), (2, 0)]
    assert [line["nll"] is None for line in lines] == [False, True, False, True, False]
    total = sum(line["nll"] or 0 for line in lines)
    assert err == (
        f"total: 3 lines scored, 2 blank; 10 tokens (one [eos] a line among them), 1 unknown; {total:.3f} nats, "
        f"{total / 10:.4f} a token; perplexity {math.exp(total / 10):.5g}\n"
    )


def test_scores_as_text(trained: Lab, noam: Callable[..., Answer], text: str) -> None:
    code, out, err = noam("score", text)
    head, *rows, total = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["line", "tokens", "unknown", "nats", "perplexity", "text"]
    assert [row[head.index("text") :] for row in rows] == ["Un gato come", "(blank)", "el dragón come", "(blank)", "el"]
    assert rows[1].split()[:3] == ["2", "0", "0"]
    assert total.startswith("total: 3 lines scored, 2 blank; 10 tokens")


def test_the_training_text_has_the_loss_of_the_evaluation(trained: Lab, noam: Callable[..., Answer]) -> None:
    loss = trained.read("reports/metrics.json")["train"]["loss"]
    assert f" {loss:.4f} a token" in noam("score", "data/raw/notebook.txt")[1]


def test_standard_input_is_scored_and_stays_open(
    trained: Lab, noam: Callable[..., Answer], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = noam("score", text)
    given = types.SimpleNamespace(buffer=io.BytesIO(b"\xef\xbb\xbf" + LINES.encode("utf-8")))
    monkeypatch.setattr(sys, "stdin", given)
    assert noam("score", "-") == expected
    assert not given.buffer.closed


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"el\nun drag\xf3n\n", ", line 2: byte 0xf3 is not UTF-8"),
        (b"el\nun \xc3", ", line 2: byte 0xc3 is not UTF-8"),
        (b"", ": nothing to score: 0 lines"),
        (b"\n \n", ": nothing to score: 2 lines, all of them blank"),
    ],
)
def test_a_file_that_cannot_be_scored_is_named(
    trained: Lab, noam: Callable[..., Answer], tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    code, _, err = noam("score", str(path))
    assert code == 1
    assert err.startswith(f"error: {path}{words}")
    assert err.count("\n") == 1


def test_a_file_that_is_not_there_is_named(trained: Lab, noam: Callable[..., Answer]) -> None:
    assert noam("score", "nowhere.txt")[2] == "error: nowhere.txt: cannot be read: No such file or directory\n"
    assert noam("score", "data")[2] == "error: data: cannot be read: Is a directory\n"


def test_a_reader_that_has_enough_is_no_error(trained: Lab, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("el perro come\n" * 20_000, encoding="utf-8")
    command = f"{sys.executable} -m stages.cli score {path} | head -n 2"
    done = subprocess.run(
        ["bash", "-c", command], cwd=trained.folder, capture_output=True, text=True, check=False, timeout=120
    )
    assert (len(done.stdout.splitlines()), done.stderr) == (2, "")


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
        (("generate",), "error: data/model/config.json: not there; `dvc repro` makes it"),
        (("score", "params.yaml"), "error: data/model/config.json: not there; `dvc repro` makes it"),
        (("serve",), "error: data/model/config.json: not there; `dvc repro` makes it"),
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

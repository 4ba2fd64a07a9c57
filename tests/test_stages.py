"""Vocab, train and evaluate on texts that people bring: what the files hold, the same each time."""

from __future__ import annotations

import math
import platform

import numpy as np
import pytest
import safetensors.numpy
import torch

from stages import paths
from stages.analysis.measures import MEASURES
from stages.errors import ArtifactError, ParamError
from stages.evaluate import attention_before
from stages.model.predict import Predictor
from stages.optim.schedules import noam_rate
from stages.text.grammar import Grammar
from tests.conftest import Lab

BASE = "el perro come pan\nla niña bebe agua\nel gato duerme aquí\nla perra come carne\n"
HELD_OUT = "".join(f"el perro número {i} come pan\n" for i in range(40))


def prepared(lab: Lab, corpus: str) -> None:
    lab.corpus(corpus)
    lab.run("prepare", "vocab")


# --- vocab ------------------------------------------------------------------------------------------------------------


def test_ids_are_those_of_the_sentences(lab: Lab) -> None:
    prepared(lab, "el [bos] perro\nun <unk>\n")
    vocabulary = lab.read("data/vocab/vocab.json")
    assert vocabulary["specials"] == ["[pad]", "[bos]", "[eos]", "[unk]"]
    assert vocabulary["words"] == ["el", "[bos]", "perro", "un", "<unk>"]
    assert np.load("data/vocab/train.npy").tolist() == [1, 4, 5, 6, 2, 1, 7, 8, 2]
    assert np.load("data/vocab/valid.npy").tolist() == []


def test_words_of_held_out_text_alone_are_unknown(lab: Lab) -> None:
    lab.set(valid_fraction=0.25, test_fraction=0.25)
    prepared(lab, HELD_OUT)
    vocabulary = lab.read("data/vocab/vocab.json")
    assert vocabulary["unknown_tokens"] == {"train": 0, "valid": 10, "test": 10}
    assert len(vocabulary["words"]) == 5 + 20


# --- train and evaluate -----------------------------------------------------------------------------------------------


def test_what_training_leaves(trained: Lab) -> None:
    history, validation = trained.read("reports/history.json"), trained.read("reports/validation.json")
    assert [record["step"] for record in history] == list(range(1, 28))
    assert [record["lr"] for record in history] == [noam_rate(t, 16, 10) for t in range(1, 28)]
    assert [(record["step"], record["split"]) for record in validation] == [(t, "train") for t in (0, 9, 18, 27)]
    config = trained.read("data/model/config.json")
    weights = safetensors.numpy.load_file("data/model/weights.safetensors")
    assert config["updates"] == 27
    assert config["parameters"] == sum(array.size for array in weights.values())
    assert (config["training"]["warmup"], config["training"]["n_heads"], config["model"]["vocab_size"]) == (10, 2, 17)


def test_what_evaluation_leaves(trained: Lab) -> None:
    metrics = trained.read("reports/metrics.json")
    assert metrics.keys() == {"measured_on", "context", "stride", "counted_tokens", "train"}
    assert (metrics["context"], metrics["stride"], metrics["counted_tokens"]) == (512, 512, 48)
    assert metrics["measured_on"].startswith("training text (no held-out text")
    measured = metrics["train"]
    assert (measured["tokens"], measured["sentences"], measured["unknown_share"]) == (48, 9, 0)
    assert measured["floor"] == pytest.approx(0.4120, abs=5e-5)
    assert measured["excess"] == pytest.approx(measured["loss"] - measured["floor"])
    assert measured["perplexity"] == pytest.approx(math.exp(measured["loss"]))
    assert measured["loss"] == pytest.approx(trained.read("reports/validation.json")[-1]["loss"], rel=1e-9)

    text = (trained.folder / "data/prepared/train.txt").read_text(encoding="utf-8")
    nats = measured["loss"] * measured["tokens"]
    assert measured["bits_per_character"] == pytest.approx(nats / math.log(2) / len(text))  # a line end a sentence
    assert measured["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text.encode()))
    assert measured["baseline"]["uniform"] == pytest.approx(math.log(17))
    assert measured["gain"] == pytest.approx(measured["baseline"]["trigram"] - measured["loss"])
    assert measured["interval"]["loss_low"] < measured["loss"] < measured["interval"]["loss_high"]
    table = trained.read("data/evaluation/calibration.json")["train"]
    assert sum(row["tokens"] for row in table) == 48
    apart = sum(row["tokens"] * abs(row["confidence"] - row["accuracy"]) for row in table if row["tokens"])
    assert measured["ece"] == pytest.approx(apart / 48)
    right = sum(row["tokens"] * row["accuracy"] for row in table if row["tokens"])
    assert measured["accuracy"] == pytest.approx(right / 48)
    assert measured["accuracy"] < measured["accuracy_top5"] <= 1

    following = trained.read("data/evaluation/next_words.json")
    assert [entry["prompt"] for entry in following] == ["", "un gato come"]
    assert [entry["tokens"] for entry in following] == [["[bos]"], ["[bos]", "un", "gato", "come"]]
    attention = safetensors.numpy.load_file("data/evaluation/attention.safetensors")
    for i, entry in enumerate(following):
        probabilities = [word["probability"] for word in entry["next"]]
        assert len(probabilities) == 15
        assert probabilities == sorted(probabilities, reverse=True)
        weights_LHTT = attention[f"prompt-{i}"]
        assert weights_LHTT.shape == (1, 2, len(entry["tokens"]), len(entry["tokens"]))
        assert weights_LHTT.sum(axis=3) == pytest.approx(1, abs=1e-5)
        assert not np.triu(weights_LHTT, 1).any()


def test_the_attention_on_the_way_leaves_the_model_as_it_was_trained(trained: Lab) -> None:
    predictor = Predictor.load(paths.MODEL, paths.VOCAB / "vocab.json")
    answers = [predictor.explain("un gato come", 5)]
    before = attention_before(predictor, answers)
    assert list(before) == [f"prompt-0/{step}" for step in (0, 6, 13, 20)]
    after, weights_LHTT = predictor.explain("un gato come", 5)
    assert after == answers[0][0]
    assert not any(torch.equal(weights_LHTT, others_LHTT) for others_LHTT in before.values())


def test_running_again_changes_no_byte_and_another_seed_does(small_lab: Lab) -> None:
    small_lab.set(dropout=0.5)
    stages, outputs = ("prepare", "vocab", "train", "evaluate"), ("data", "reports")
    small_lab.run(*stages)
    first = small_lab.bytes_of(*outputs)
    small_lab.run(*stages)
    assert small_lab.bytes_of(*outputs) == first
    small_lab.set(seed=1)
    small_lab.run(*stages)
    changed = {name for name, content in small_lab.bytes_of(*outputs).items() if content != first[name]}
    assert changed == {
        "data/evaluation/attention.safetensors",
        "data/evaluation/attention_before.safetensors",
        "data/evaluation/calibration.json",
        "data/evaluation/next_words.json",
        "data/model/config.json",
        *(f"data/model/snapshots/{step}.safetensors" for step in (0, 6, 13, 20)),
        "data/model/weights.safetensors",
        "reports/history.json",
        "reports/metrics.json",
        "reports/replicas.json",
        "reports/validation.json",
    }


def test_one_run_is_listed_as_the_only_replica(trained: Lab) -> None:
    metrics, (replica,) = trained.read("reports/metrics.json"), trained.read("reports/replicas.json")
    assert replica.keys() == {"seed", "train"}
    bounds = replica["train"].pop("interval")
    assert metrics["train"].pop("interval") == {name: bounds[name] for name in ("loss_low", "loss_high")}
    assert replica["train"] == metrics["train"]
    measured = {name.removesuffix("_low") for name in bounds if name.endswith("_low")}
    assert measured == {*MEASURES, "unknown_share"}


def test_replicas_are_measured_each_and_together(
    small_lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small_lab.set(replicas=3, seed=9, workers=2)
    small_lab.run("prepare", "vocab")
    assert small_lab.command("stages.train").returncode == 0  # a process of its own, since it forks
    small_lab.run("evaluate")
    metrics, replicas = small_lab.read("reports/metrics.json"), small_lab.read("reports/replicas.json")
    assert [one["seed"] for one in replicas] == [9, 10, 11]
    assert (metrics["replicas"], metrics["diverged"]) == (3, 0)
    losses = [one["train"]["loss"] for one in replicas]
    train = metrics["train"]
    assert train["loss"] == pytest.approx(sum(losses) / 3)
    assert train["loss_low"] < min(losses) <= train["loss"] <= max(losses) < train["loss_high"]
    assert train["excess"] == pytest.approx(train["loss"] - train["floor"])
    assert train["perplexity"] == pytest.approx(sum(map(math.exp, losses)) / 3)
    assert (train["tokens"], train["sentences"], train["floor"]) == (48, 9, pytest.approx(0.4120, abs=5e-5))
    assert [row["replicas"] for row in small_lab.read("reports/history.json")] == [3] * 27
    # What is predicted and explained is by the first of them.
    following = small_lab.read("data/evaluation/next_words.json")
    for name in ("weights.safetensors", "config.json"):
        first = small_lab.folder / "data/model" / name
        assert first.exists()
    for folder in (small_lab.folder / "data/model/replicas").iterdir():
        if folder.name != "9":
            (folder / "weights.safetensors").write_bytes(
                (small_lab.folder / "data/model/weights.safetensors").read_bytes()
            )
    small_lab.run("evaluate")
    assert small_lab.read("data/evaluation/next_words.json") == following
    assert small_lab.read("reports/metrics.json")["train"]["loss_std"] == pytest.approx(0, abs=1e-12)
    assert f"train loss {losses[0]:.4f} nats/token" in capsys.readouterr().out


def test_a_run_that_diverges_comes_to_the_end_of_the_pipeline(
    small_lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    small_lab.set(optimizer="sgd", schedule="none", lr=1e30, batch_size=64)
    small_lab.run("prepare", "vocab", "train", "evaluate", "plots")
    assert (small_lab.folder / "reports/index.html").exists()
    said = capsys.readouterr()
    assert "train: warning: diverged at update 1" in said.err
    assert "evaluate: train loss not finite" in said.out
    metrics = small_lab.read("reports/metrics.json")
    assert (metrics["diverged_at"], metrics["last_finite"]["step"]) == (1, 0)
    assert [metrics["train"][name] for name in (*MEASURES, "excess")] == [None] * (len(MEASURES) + 1)
    assert metrics["train"]["baseline"]["trigram"] > 0
    (replica,) = small_lab.read("reports/replicas.json")
    assert [replica[key] for key in ("diverged_at", "last_finite")] == [1, metrics["last_finite"]]
    assert replica["train"]["interval"] is None
    assert small_lab.read("data/evaluation/calibration.json") == {"train": []}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threads": 4}, "threads = 4: only 1 used, since a thread computes a shard (`shards`)"),
        ({"batch_size": 3, "warmup": 99}, "an update has 3 examples"),
        ({}, None),
    ],
)
def test_what_has_no_effect_is_said(
    small_lab: Lab, changes: dict[str, object], words: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    small_lab.set(**changes)
    small_lab.run("prepare", "vocab", "train")
    said = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(said) == (words is not None)
    assert words is None or words in said[0]


def test_packed_windows_train_and_a_text_too_short_for_them_is_refused_by_name(small_lab: Lab) -> None:
    small_lab.set(batches="packed", context=8, batch_size=2)
    small_lab.run("prepare", "vocab", "train", "evaluate")
    assert len(small_lab.read("reports/history.json")) == 3 * 3  # 57 tokens are 6 windows
    small_lab.set(context=57)
    with pytest.raises(ParamError, match=r"^params\.yaml: context = 57: expected less than the 57 tokens of the text$"):
        small_lab.run("train")


def test_no_output_tells_where_or_by_whom_it_was_made(trained: Lab) -> None:
    for name, content in trained.bytes_of("data", "reports").items():
        for secret in (str(trained.folder), platform.node()):
            assert secret.encode() not in content or len(secret) < 5, name


def test_held_out_text_is_measured_and_so_said(small_lab: Lab) -> None:
    small_lab.set(valid_fraction=0.25, test_fraction=0.1, batch_size=8)
    small_lab.corpus(HELD_OUT)
    small_lab.run("prepare", "vocab", "train", "evaluate")
    metrics = small_lab.read("reports/metrics.json")
    assert metrics["measured_on"] == "training text and held-out text (valid, test)"
    assert [metrics[name]["sentences"] for name in ("train", "valid", "test")] == [26, 10, 4]
    assert [metrics[name]["tokens"] for name in ("train", "valid", "test")] == [26 * 7, 70, 28]
    assert metrics["valid"]["unknown_share"] == pytest.approx(1 / 7)
    assert "floor" not in metrics["valid"]
    assert {record["split"] for record in small_lab.read("reports/validation.json")} == {"valid"}


def test_a_large_training_text_is_sampled_and_so_said(small_lab: Lab) -> None:
    small_lab.set(train_sample=20, valid_fraction=0.25, batch_size=8)
    small_lab.corpus(HELD_OUT)
    small_lab.run("prepare", "vocab", "train", "evaluate")
    metrics = small_lab.read("reports/metrics.json")
    assert metrics["measured_on"] == "a sample of 14 of the 210 tokens of the training text and held-out text (valid)"
    assert [(metrics[name]["tokens"], metrics[name]["sentences"]) for name in ("train", "valid")] == [(14, 2), (70, 10)]
    assert "floor" not in metrics["train"]
    assert metrics["counted_tokens"] == 210


def test_long_sentences_are_scored_in_windows(small_lab: Lab) -> None:
    small_lab.set(max_length=4, stride=2)
    small_lab.run("prepare", "vocab", "train", "evaluate")
    half = small_lab.read("reports/metrics.json")
    small_lab.set(stride=0)
    small_lab.run("evaluate")
    none = small_lab.read("reports/metrics.json")
    assert ((half["context"], half["stride"]), (none["context"], none["stride"])) == ((4, 2), (4, 4))
    assert half["train"]["tokens"] == none["train"]["tokens"] == 48
    assert half["train"]["loss"] != none["train"]["loss"]
    small_lab.set(stride=5)
    with pytest.raises(ParamError, match=r"^params\.yaml: stride = 5: expected at most 4, the tokens that the model"):
        small_lab.run("evaluate")


def test_text_and_ids_that_do_not_belong_together_are_refused(small_lab: Lab) -> None:
    small_lab.run("prepare", "vocab", "train")
    path = small_lab.folder / "data/prepared/train.txt"
    path.write_text(path.read_text(encoding="utf-8") + "una más\n", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"data/prepared/train\.txt: 10 units of text, but 9 sentences of ids"):
        small_lab.run("evaluate")


def test_one_sentence_has_measures_and_no_interval(small_lab: Lab) -> None:
    small_lab.corpus("hola mundo\n")
    small_lab.run("prepare", "vocab", "train", "evaluate", "plots")
    assert small_lab.read("reports/replicas.json")[0]["train"]["interval"] is None
    assert small_lab.read("reports/metrics.json")["train"]["interval"] == {"loss_low": None, "loss_high": None}


def test_a_corpus_of_the_grammar_is_set_against_it(small_lab: Lab) -> None:
    small_lab.set(valid_fraction=0.1, batch_size=30)
    small_lab.corpus("\n".join(Grammar(2).sentences(300, 0)))
    small_lab.run("prepare", "vocab", "train")
    small_lab.set(corpus="grammar", grammar_depth=2)
    small_lab.run("evaluate", "plots")
    truth = small_lab.read("reports/metrics.json")["truth"]
    assert truth["sentences"] == 1000
    assert truth["true_loss"] == pytest.approx(truth["entropy"], abs=0.05)
    assert truth["excess"] == pytest.approx(truth["loss"] - truth["true_loss"])
    assert 0 < truth["excess_error"] < 0.1 < truth["excess"]
    assert 0.2 < truth["agreement_number"] < 1
    assert {row["feature"] for row in small_lab.read("data/evaluation/agreement.json")} == {"number", "gender"}
    assert small_lab.read("data/evaluation/truth.json")[0]["prompt"] == ""
    assert (small_lab.folder / "reports/figures/agreement.png").exists()


@pytest.mark.parametrize("corpus", ["hola\nadiós\nel perro come pan\n", "hola\n", BASE])
def test_less_text_than_a_batch_still_trains(small_lab: Lab, corpus: str) -> None:
    small_lab.set(batch_size=64)
    small_lab.corpus(corpus)
    small_lab.run("prepare", "vocab", "train", "evaluate")
    losses = [record["loss"] for record in small_lab.read("reports/history.json")]
    assert len(losses) == 3
    assert all(0 < loss < 100 for loss in losses)


@pytest.mark.parametrize(
    ("changes", "warns"),
    [({"warmup": 27}, True), ({"warmup": 26}, False), ({"warmup": 99, "schedule": "none"}, False)],
)
def test_a_warmup_that_never_ends_is_said(
    small_lab: Lab, changes: dict[str, object], warns: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    small_lab.set(**changes)
    small_lab.run("prepare", "vocab", "train")
    said = capsys.readouterr().err
    assert (f"train: warning: warmup = {changes['warmup']} ≥ 27 updates" in said) == warns


def test_unknown_words_of_a_prompt_are_said(small_lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    small_lab.set(prompts=["el DRAGÓN come", "   "], top_k=3)
    small_lab.run("prepare", "vocab", "train", "evaluate")
    assert "prompt 'el DRAGÓN come': unknown words dragón read as [unk]" in capsys.readouterr().err
    first, second = small_lab.read("data/evaluation/next_words.json")
    assert (first["tokens"], first["unknown"]) == (["[bos]", "el", "[unk]", "come"], ["dragón"])
    assert (second["tokens"], second["unknown"]) == (["[bos]"], [])
    assert len(first["next"]) == len(second["next"]) == 3


@pytest.mark.parametrize(
    ("text", "tokenizer", "hinted"),
    [
        ("今日は良い天気です\n明日も晴れるでしょう\n", "word", True),
        ("วันนี้อากาศดีมาก\nพรุ่งนี้ฝนจะตก\n", "word", True),
        ("今日は良い天気です\n明日も晴れるでしょう\n", "char", False),
        ("hola\nadiós\n", "word", False),
        ("오늘은 날씨가 좋습니다\n내일도 맑겠지요\n", "word", False),
    ],
)
def test_a_script_without_spaces_is_noticed(
    small_lab: Lab, capsys: pytest.CaptureFixture[str], text: str, tokenizer: str, hinted: bool
) -> None:
    small_lab.corpus(text)
    small_lab.set(tokenizer=tokenizer)
    small_lab.run("prepare", "vocab")
    assert ("no spaces between words" in capsys.readouterr().err) == hinted


@pytest.mark.parametrize("tokenizer", ["word_punct", "char", "byte", "bpe", "unigram"])
def test_every_tokenizer_comes_to_the_end_of_the_pipeline(small_lab: Lab, tokenizer: str) -> None:
    small_lab.set(tokenizer=tokenizer, max_vocab=280, valid_fraction=0.2)
    small_lab.run("prepare", "vocab", "train", "evaluate", "plots")
    metrics = small_lab.read("reports/metrics.json")
    text = (small_lab.folder / "data/prepared/valid.txt").read_text(encoding="utf-8")
    nats = metrics["valid"]["loss"] * metrics["valid"]["tokens"]
    assert metrics["valid"]["bits_per_character"] == pytest.approx(nats / math.log(2) / len(text))
    vocabulary = small_lab.read("data/vocab/vocab.json")
    assert vocabulary["tokenizer"] == tokenizer
    prompts = small_lab.read("data/evaluation/next_words.json")
    assert all(word["word"].strip() for prompt in prompts for word in prompt["next"])


def test_long_sentences_are_read_in_windows_and_it_is_said(small_lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    small_lab.corpus("uno dos tres\n" + "a b c d e " * 20 + "\n")
    small_lab.set(max_length=16)
    small_lab.run("prepare", "vocab", "train", "evaluate")
    assert "1 sentence(s) of more than max_length = 16 tokens, the longest of 101" in capsys.readouterr().err
    metrics = small_lab.read("reports/metrics.json")
    assert metrics["train"]["tokens"] == 4 + 101
    assert metrics["context"] == 16
    assert len(small_lab.read("reports/history.json")) == 3 * (1 + 7)

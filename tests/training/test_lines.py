"""The likelihood of given lines: that of the evaluation, whatever they are batched with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from stages.errors import LabError
from stages.model.language_model import LanguageModel
from stages.model.predict import Predictor
from stages.text.vocabulary import BOS, EOS, TextSettings, Vocabulary
from stages.training import lines
from stages.training.batches import Sentences
from stages.training.lines import Scored, score_lines
from stages.training.scoring import score

NewModel = Callable[..., LanguageModel]
VOCABULARY = Vocabulary(["el", "gato", "come"], [3, 2, 1], TextSettings(lowercase=True))
TEXT = ["El gato come", "", "gato", "el dragón come el gato", " \t", "come come come come come come come come"]


def new_predictor(new_model: NewModel, **about: Any) -> Predictor:
    return Predictor(new_model(vocab_size=7), VOCABULARY, about)


def test_each_sentence_is_scored_as_it_is_alone(new_model: NewModel) -> None:
    predictor = new_predictor(new_model)
    found = list(score_lines(predictor, TEXT))
    assert [text for text, _ in found] == TEXT
    assert [(one.tokens, one.unknown) for _, one in found] == [(4, 0), (0, 0), (2, 0), (6, 1), (0, 0), (9, 0)]
    for text, one in found:
        ids = [BOS, *VOCABULARY.encode(text), EOS]
        logits_TV = predictor.model(torch.tensor([ids[:-1]]))[0][0].double()
        nats = -logits_TV.log_softmax(1)[range(len(ids) - 1), ids[1:]].sum().item()
        assert one.nll == pytest.approx(nats if one.tokens else 0.0, abs=1e-5)


def test_the_total_is_that_of_the_evaluation(new_model: NewModel) -> None:
    predictor = new_predictor(new_model)
    total = Scored(0, 0, 0.0)
    for _, one in score_lines(predictor, TEXT):
        total += one
    sentences = [VOCABULARY.normalise(text) for text in TEXT if text.strip()]
    expected = score(predictor.model, Sentences(VOCABULARY.flat_ids(sentences)))
    assert (total.tokens, total.unknown) == (expected.tokens, expected.unknown_N.sum())
    assert total.nll == pytest.approx(expected.nll)
    assert total.perplexity == pytest.approx(expected.perplexity)


@pytest.mark.parametrize("together", [1, 2, 3, 5])
def test_how_it_is_batched_changes_nothing(new_model: NewModel, monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    predictor = new_predictor(new_model, training={"max_length": 4})
    expected = [one for _, one in score_lines(predictor, TEXT)]
    monkeypatch.setattr(lines, "_LINES", together)
    found = [one for _, one in score_lines(predictor, TEXT)]
    assert [one.nll for one in found] == pytest.approx([one.nll for one in expected], abs=1e-5)
    assert [one.tokens for one in found] == [one.tokens for one in expected]


def test_a_long_sentence_is_scored_in_windows(new_model: NewModel) -> None:
    predictor = new_predictor(new_model, training={"max_length": 4})
    lengths: list[int] = []
    predictor.model.register_forward_pre_hook(lambda _, given: lengths.append(given[0].shape[1]))
    ((_, one),) = score_lines(predictor, ["come el gato come el"])
    assert one.tokens == 6
    assert max(lengths) == 4
    expected = 0.0
    for inputs, targets in (([1, 6, 4, 5], [6, 4, 5, 6]), ([6, 4], [4, EOS])):
        logits_TV = predictor.model(torch.tensor([inputs]))[0][0].double()
        expected -= logits_TV.log_softmax(1)[range(len(inputs)), targets].sum().item()
    assert one.nll == pytest.approx(expected, abs=1e-5)


def test_white_space_at_the_end_is_not_scored(new_model: NewModel) -> None:
    settings = TextSettings(lowercase=True, tokenizer="char")
    letters = Vocabulary(["e", "l", " "], [1, 1, 1], settings)
    predictor = Predictor(new_model(vocab_size=7), letters)
    assert len({one for _, one in score_lines(predictor, ["el", "el ", " el\t"])}) == 1
    running = Vocabulary(["e", "l", " "], [1, 1, 1], settings.model_copy(update={"keep_spaces": True}))
    ((_, one),) = score_lines(Predictor(new_model(vocab_size=7), running), ["el "])
    assert one.tokens == 4


def test_a_text_without_end_is_read_as_it_is_needed(new_model: NewModel) -> None:
    read = 0

    def sentences() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "el gato"

    scores = score_lines(new_predictor(new_model), sentences())
    first = [next(scores) for _ in range(300)]
    assert {one.tokens for _, one in first} == {3}
    assert read == 512


def test_sums_and_what_is_not_there() -> None:
    both = Scored(10, 1, 20.0) + Scored(1, 0, 1.0)
    assert (both.tokens, both.unknown) == (11, 1)
    assert both.perplexity == pytest.approx(math.exp(21 / 11))
    assert (Scored(0, 0, 0.0).loss, Scored(0, 0, 0.0).perplexity) == (None, None)
    assert Scored(1, 0, 800.0).perplexity is None  # beyond a float
    assert both.to_dict() == {"tokens": 11, "unknown": 1, "nll": 21.0, "perplexity": both.perplexity}


def test_a_model_that_diverged_is_one_sentence(new_model: NewModel) -> None:
    predictor = new_predictor(new_model, diverged_at=3)
    with torch.no_grad():
        predictor.model.output.bias.fill_(float("nan"))
    with pytest.raises(LabError, match="not finite: it diverged at update 3"):
        list(score_lines(predictor, TEXT))

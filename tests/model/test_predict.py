"""What a predictor reads of a prompt, and how often it asks the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from stages.model.language_model import LanguageModel
from stages.model.predict import Predictor
from stages.text.vocabulary import TextSettings, Vocabulary

NewModel = Callable[..., LanguageModel]
VOCABULARY = Vocabulary(["el", "gato", "come"], [3, 2, 1], TextSettings(lowercase=True))


def new_predictor(new_model: NewModel, **about: Any) -> Predictor:
    return Predictor(new_model(vocab_size=7), VOCABULARY, about)


@pytest.mark.parametrize(
    ("training", "window"),
    [
        ({}, 512),
        ({"max_length": 9}, 9),
        ({"max_length": 9, "context": 4, "batches": "shuffled"}, 9),
        ({"max_length": 9, "context": 4, "batches": "packed"}, 4),
        ({"max_length": 9, "a_key_of_long_ago": 1}, 9),
    ],
)
def test_the_window_is_what_the_model_was_trained_on(
    new_model: NewModel, training: dict[str, Any], window: int
) -> None:
    assert new_predictor(new_model, training=training).window == window
    assert Predictor(new_model(vocab_size=7), VOCABULARY).window == 512


def test_of_a_prompt_longer_than_the_window_the_last_tokens_are_read(new_model: NewModel) -> None:
    predictor = new_predictor(new_model, training={"max_length": 3})
    prediction, weights_LHTT = predictor.explain("el el gato come", 7)
    assert (prediction.tokens, prediction.dropped) == (["el", "gato", "come"], 2)
    assert weights_LHTT.shape == (2, 3, 3, 3)
    logits_V = predictor.model(torch.tensor([[4, 5, 6]]))[0][0, -1].double()
    expected = dict(zip(map(VOCABULARY.label, range(7)), logits_V.softmax(0).tolist(), strict=True))
    assert dict(prediction.next) == expected
    assert torch.equal(predictor.next_logits([1, 4, 4, 5, 6]), logits_V)
    assert prediction.to_dict()["dropped"] == 2


def test_words_and_attention_come_from_one_pass(new_model: NewModel) -> None:
    predictor = new_predictor(new_model)
    passes: list[None] = []
    predictor.model.register_forward_hook(lambda *_: passes.append(None))
    predictor.explain("el gato", 3)
    assert len(passes) == 1
    predictor.next_words("el gato", 3)
    assert len(passes) == 2


def test_a_model_whose_numbers_are_not_finite_is_told(new_model: NewModel) -> None:
    predictor = new_predictor(new_model, diverged_at=7)
    assert predictor.next_words("el", 3).finite
    with torch.no_grad():
        predictor.model.output.bias.fill_(float("nan"))
    prediction = predictor.next_words("el", 3)
    assert not prediction.finite
    assert {entry["probability"] for entry in prediction.to_dict()["next"]} == {None}
    assert predictor.not_finite.startswith("the model's probabilities are not finite: it diverged at update 7")
    assert "diverged" not in new_predictor(new_model).not_finite

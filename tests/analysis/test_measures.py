"""The measures of a text, by hand and with intervals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stages.analysis.measures import MEASURES, Yardstick, measures
from stages.analysis.ngrams import Counts
from stages.text.vocabulary import BOS, EOS, UNK
from stages.training.batches import Sentences
from stages.training.scoring import Score, Targets

PARTS = [("ñu", False), (" a", True), ("b", True)]  # of two units
SENTENCES = Sentences(np.array([BOS, 4, 5, EOS, BOS, UNK, EOS], dtype=np.uint16))
NAMES = {*MEASURES, "unknown_share"}


def scored(nll: list[float], targets: Targets | None = None, **changes: list[Any]) -> Score:
    """A score of five targets in two sentences, or of those given."""
    targets = Targets.of(SENTENCES) if targets is None else targets
    count = len(targets)
    arrays: dict[str, Any] = {
        "confidence_N": [0.5] * count,
        "correct_N": [True, False] * count,
        "correct_top5_N": [True] * count,
        "unknown_N": [False, False, False, True, False],
    }
    arrays |= changes
    return Score(targets, np.array(nll, dtype=float), **{name: np.array(a)[:count] for name, a in arrays.items()})


def yardstick(targets: Targets | None = None) -> Yardstick:
    targets = Targets.of(SENTENCES) if targets is None else targets
    return Yardstick.of(SENTENCES, targets, PARTS, Counts(SENTENCES.ids, 6))


def test_by_hand() -> None:
    """15 nats, 5 tokens; 4 + 1 and 1 + 1 characters, one byte more for ñ; 3 of 5 right with a confidence of 0.5."""
    found = measures(scored([1.0, 2.0, 3.0, 4.0, 5.0]), yardstick(), 100)
    trigram = found["baseline"]["trigram"]
    expected = {
        "loss": 3.0,
        "perplexity": math.exp(3),
        "bits_per_character": 15 / math.log(2) / 7,
        "bits_per_byte": 15 / math.log(2) / 8,
        "accuracy": 0.6,
        "accuracy_top5": 1.0,
        "ece": pytest.approx(0.1),
        "gain": pytest.approx(trigram - 3.0),
        "unknown_share": 0.2,
        "tokens": 5,
        "sentences": 2,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found.keys() == expected.keys() | {"baseline", "interval"}
    assert found["baseline"]["uniform"] == pytest.approx(math.log(6))
    assert found["baseline"]["unigram"] > 0 < trigram


def test_every_measure_has_an_interval_around_it() -> None:
    """Two sentences can be drawn in three ways; the bounds are those of the first alone and of the second."""
    found = measures(scored([1.0, 2.0, 3.0, 4.0, 5.0]), yardstick(), 1000)
    interval = found["interval"]
    assert interval.keys() == {f"{name}_{end}" for name in NAMES for end in ("low", "high")}
    for name in NAMES:
        low, high = interval[f"{name}_low"], interval[f"{name}_high"]
        assert low <= high
        if name != "ece":  # which may lie below: two halves that are each off by as much
            assert low <= found[name] <= high
    assert (interval["loss_low"], interval["loss_high"]) == pytest.approx((2.0, 4.5))
    assert interval["perplexity_high"] == pytest.approx(math.exp(4.5))
    assert (interval["unknown_share_low"], interval["unknown_share_high"]) == pytest.approx((0.0, 0.5))
    assert (interval["bits_per_byte_low"], interval["bits_per_byte_high"]) == pytest.approx(
        (6 / math.log(2) / 6, 9 / math.log(2) / 2)
    )


def test_the_interval_of_the_gain_is_paired() -> None:
    """A model that is better than counting by as much on each token has no doubt about it."""
    trigram = yardstick().trigram_N
    interval = measures(scored((trigram - 0.25).tolist()), yardstick(), 200)["interval"]
    assert (interval["gain_low"], interval["gain_high"]) == pytest.approx((0.25, 0.25))
    assert interval["loss_high"] - interval["loss_low"] > 0.1


def test_one_sentence_has_no_interval() -> None:
    targets = Targets.of(SENTENCES, np.array([1]))
    found = measures(scored([4.0, 5.0], targets), yardstick(targets), 100)
    assert found["interval"] is None
    assert found["bits_per_character"] == pytest.approx(9 / math.log(2) / 2)


def test_of_a_sentence_that_is_cut_characters_count_in_proportion() -> None:
    targets = Targets.of(SENTENCES, tokens=2)
    found = measures(scored([4.0, 5.0], targets), yardstick(targets), 100)
    assert found["bits_per_byte"] == pytest.approx(9 / math.log(2) / (6 * 2 / 3))


@pytest.mark.parametrize("nll", [math.nan, math.inf])
def test_what_is_not_finite_is_null(nll: float) -> None:
    found = measures(scored([1.0, 2.0, nll, 4.0, 5.0]), yardstick(), 100)
    assert [found[name] for name in MEASURES] == [None] * len(MEASURES)
    assert (found["unknown_share"], found["tokens"], found["interval"]) == (0.2, 5, None)
    assert found["baseline"]["trigram"] > 0


def test_a_perplexity_beyond_a_float_is_null_beside_its_loss() -> None:
    found = measures(scored([900.0] * 5), yardstick(), 100)
    assert (found["loss"], found["perplexity"]) == (900.0, None)
    assert (found["interval"]["loss_low"], found["interval"]["perplexity_low"]) == (900.0, None)


def test_text_that_does_not_belong_to_the_ids_is_told() -> None:
    with pytest.raises(ValueError, match="1 units of text, but 2 sentences of ids"):
        Yardstick.of(SENTENCES, Targets.of(SENTENCES), PARTS[:2], Counts(SENTENCES.ids, 6))

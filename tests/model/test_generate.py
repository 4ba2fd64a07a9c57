"""Sampling is what the papers say, the seed decides the text, and the text grows as the vocabulary spells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import LabError
from stages.model.generate import NEVER, Sampling, generate, growth
from stages.model.language_model import LanguageModel
from stages.model.predict import Predictor
from stages.text.vocabulary import BOS, EOS, PAD, UNK, TextSettings, Vocabulary

NewModel = Callable[..., LanguageModel]
VOCABULARY = Vocabulary(["el", "gato", "come", "un"], [4, 3, 2, 1], TextSettings(lowercase=True))
LOGITS = torch.log(torch.tensor([9.0, 9.0, 1.0, 9.0, 4.0, 3.0, 2.0, 2.0]))  # of [eos] and the words: 1 4 3 2 2 of 12


def new_predictor(new_model: NewModel, **about: Any) -> Predictor:
    return Predictor(new_model(vocab_size=8), VOCABULARY, about)


def shares(sampling: Sampling) -> dict[int, float]:
    ids_K, probability_K = sampling.distribution(LOGITS)
    return dict(zip(ids_K.tolist(), probability_K.tolist(), strict=True))


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), {4: 4 / 12, 5: 3 / 12, 6: 2 / 12, 7: 2 / 12, EOS: 1 / 12}),
        (Sampling(temperature=0), {4: 1.0}),
        (Sampling(temperature=0.5), {4: 16 / 34, 5: 9 / 34, 6: 4 / 34, 7: 4 / 34, EOS: 1 / 34}),
        (Sampling(temperature=1e-300), {4: 1.0}),
        (Sampling(temperature=1e300), dict.fromkeys((4, 5, 6, 7, EOS), 1 / 5)),
        (Sampling(top_k=1), {4: 1.0}),
        (Sampling(top_k=3), {4: 4 / 9, 5: 3 / 9, 6: 2 / 9}),  # of equal ones the lowest id
        (Sampling(top_k=99), {4: 4 / 12, 5: 3 / 12, 6: 2 / 12, 7: 2 / 12, EOS: 1 / 12}),
        (Sampling(top_p=0.3), {4: 1.0}),
        (Sampling(top_p=0.5), {4: 4 / 7, 5: 3 / 7}),
        (Sampling(top_p=1e-300), {4: 1.0}),
        (Sampling(top_k=3, top_p=0.5), {4: 4 / 7, 5: 3 / 7}),  # 4/9 is less than half, 7/9 is enough
        (Sampling(top_k=2, top_p=0.5), {4: 1.0}),  # 4/7 is enough: the share is one of what top-k left
    ],
)
def test_what_can_be_drawn(sampling: Sampling, expected: dict[int, float]) -> None:
    assert shares(sampling) == pytest.approx(expected)


def test_draws_follow_the_distribution() -> None:
    source = torch.Generator().manual_seed(0)
    drawn = [Sampling().draw(LOGITS, source) for _ in range(6000)]
    assert not set(drawn) & set(NEVER)
    for i, share in shares(Sampling()).items():
        assert drawn.count(i) / 6000 == pytest.approx(share, abs=4 * (share * (1 - share) / 6000) ** 0.5)


@given(
    st.lists(st.floats(-60, 60, width=32), min_size=6, max_size=12),
    st.floats(0, 10),
    st.none() | st.integers(1, 15),
    st.floats(0, 1, exclude_min=True),
    st.integers(0, 2**32 - 1),
)
def test_whatever_the_options_nothing_forbidden_is_drawn(
    logits: list[float], temperature: float, top_k: int | None, top_p: float, seed: int
) -> None:
    sampling = Sampling(temperature, top_k, top_p)
    ids_K, probability_K = sampling.distribution(torch.tensor(logits))
    assert not set(ids_K.tolist()) & {PAD, BOS, UNK}
    assert 1 <= len(ids_K) <= min(len(logits) - 3, top_k or len(logits))
    assert float(probability_K.sum()) == pytest.approx(1)
    assert probability_K.tolist() == sorted(probability_K.tolist(), reverse=True)
    assert sampling.draw(torch.tensor(logits), torch.Generator().manual_seed(seed)) in ids_K.tolist()


def test_of_many_equally_likely_tokens_the_lowest_ids_come_first() -> None:
    ids_K, _ = Sampling(top_k=50).distribution(torch.zeros(20_000))
    assert ids_K.tolist() == [EOS, *range(4, 53)]
    assert Sampling(temperature=0).draw(torch.zeros(20_000), torch.Generator()) == EOS


def test_the_logits_are_left_alone() -> None:
    before = LOGITS.clone()
    Sampling().distribution(LOGITS)
    assert torch.equal(LOGITS, before)


def test_the_seed_decides_the_text(new_model: NewModel) -> None:
    predictor = new_predictor(new_model)

    def text(seed: int, most: int = 20) -> list[int]:
        return list(generate(predictor, [BOS], Sampling(temperature=2.0), seed, most))

    assert text(0) == text(0)
    assert text(0)[:3] == text(0, most=3)
    assert len({tuple(text(seed)) for seed in range(10)}) > 5
    torch.manual_seed(5)  # which has no say
    state = torch.get_rng_state()
    assert text(0) == text(0)
    assert torch.equal(torch.get_rng_state(), state)


def test_greedy_takes_the_likeliest_each_time(new_model: NewModel) -> None:
    predictor = new_predictor(new_model)
    ids = [BOS]
    for _ in range(6):
        logits_V = predictor.model(torch.tensor([ids]))[0][0, -1].clone()
        logits_V[[PAD, BOS, UNK]] = -torch.inf
        ids.append(int(logits_V.argmax()))
    expected = ids[1 : ids.index(EOS)] if EOS in ids else ids[1:]
    assert list(generate(predictor, [BOS], Sampling(temperature=0), 0, 6)) == expected


def prefer(predictor: Predictor, i: int) -> None:
    """Make one id the next one whatever comes before."""
    with torch.no_grad():
        predictor.model.output.weight.zero_()
        predictor.model.output.bias.zero_()
        predictor.model.output.bias[i] = 50.0


def test_it_ends_at_eos_or_after_so_many_tokens(new_model: NewModel) -> None:
    predictor = new_predictor(new_model)
    prefer(predictor, EOS)
    assert list(generate(predictor, [BOS, 4], Sampling(), 0, 9)) == []
    prefer(predictor, 5)
    assert list(generate(predictor, [BOS, 4], Sampling(), 0, 9)) == [5] * 9


@pytest.mark.parametrize("forbidden", NEVER)
def test_what_is_no_text_is_never_generated(new_model: NewModel, forbidden: int) -> None:
    predictor = new_predictor(new_model)
    prefer(predictor, forbidden)
    for sampling in (Sampling(), Sampling(temperature=0), Sampling(top_k=1), Sampling(top_p=0.01)):
        drawn = list(generate(predictor, [BOS], sampling, 0, 200))
        assert not set(drawn) & set(NEVER)


def test_a_text_longer_than_the_window_goes_on_and_says_so_once(new_model: NewModel) -> None:
    predictor = new_predictor(new_model, training={"max_length": 4})
    prefer(predictor, 5)
    lengths: list[int] = []
    predictor.model.register_forward_pre_hook(lambda _, given: lengths.append(given[0].shape[1]))
    told: list[int] = []

    def drop() -> None:
        told.append(len(lengths))

    assert len(list(generate(predictor, [BOS, 4], Sampling(), 0, 6, drop))) == 6
    assert lengths == [2, 3, 4, 4, 4, 4]
    assert told == [3]  # before the fourth pass, the first that does not read all
    told.clear()
    list(generate(predictor, [BOS, 4, 4, 4, 4], Sampling(), 0, 2, drop))
    assert len(told) == 1


def test_a_model_that_diverged_is_one_sentence(new_model: NewModel) -> None:
    predictor = new_predictor(new_model, diverged_at=3)
    with torch.no_grad():
        predictor.model.output.bias.fill_(float("nan"))
    for temperature in (0.0, 1.0):
        with pytest.raises(LabError, match="not finite: it diverged at update 3"):
            next(generate(predictor, [BOS], Sampling(temperature), 0, 5))


def test_the_growth_is_the_text(new_model: NewModel) -> None:
    pieces = list(growth(VOCABULARY, [BOS, 4], [5, 6, 7]))
    assert pieces == [" gato", " come", " un"]
    assert list(growth(VOCABULARY, [BOS], [5, 6])) == ["gato", " come"]
    assert list(growth(VOCABULARY, [BOS], [])) == []


BYTES = Vocabulary.build(
    ["a"], TextSettings(lowercase=False, tokenizer="byte"), order="frequency", min_count=1, max_vocab=0
)


def ids_of(text: str) -> list[int]:
    return [byte + 4 for byte in text.encode("utf-8")]


@given(st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"]), max_size=12), st.integers(0, 12))
def test_no_half_character_is_shown_and_nothing_is_lost(text: str, cut: int) -> None:
    ids = ids_of(text)
    prompt = [BOS, *ids_of(text[:cut])]
    pieces = list(growth(BYTES, prompt, ids[len(prompt) - 1 :]))
    assert "".join(pieces) == text[cut:]
    assert "\ufffd" not in "".join(pieces)


def test_what_ends_within_a_character_is_shown_at_the_end() -> None:
    pieces = list(growth(BYTES, [BOS], ids_of("añ")[:-1]))
    assert pieces == ["a", "\ufffd"]

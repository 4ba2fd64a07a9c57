"""One update: the gradient is that of the whole batch, however it is cut, and its bytes know nothing of threads."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.model.language_model import LanguageModel, initialise, language_model_loss
from stages.text.vocabulary import PAD
from stages.training.batches import Batch, Windows
from stages.training.engine import Engine
from stages.training.randomness import Dropout, generator
from stages.training.session import model_config
from tests.training.small import TEXT, VOCABULARY, new_session, sentences, settings, weights_of

TEXTS = st.lists(st.lists(st.integers(4, 19), max_size=6), min_size=1, max_size=9)


def new_engine(**changes: Any) -> Engine:
    chosen = settings(**changes)
    model = LanguageModel(model_config(chosen, VOCABULARY))
    initialise(model, generator(chosen.seed, "init"))
    return Engine(model, chosen, Dropout(chosen.dropout, generator(chosen.seed, "dropout")), updates=9)


def cut(text: list[list[int]], parts: int) -> list[Batch]:
    """The text as so many batches of neighbouring sentences."""
    whole, bounds = sentences(text), [len(text) * i // parts for i in range(parts + 1)]
    return [whole.batch(range(a, b)) for a, b in itertools.pairwise(bounds) if a < b]


def by_autograd(engine: Engine, batch: Batch) -> tuple[float, torch.Tensor]:
    """Loss and gradient of one whole batch, by the book."""
    model = copy.deepcopy(engine.model)
    for parameter in model.parameters():
        parameter.grad = None
    logits_BTV, _ = model(batch.inputs_BT)
    loss = language_model_loss(logits_BTV, batch.targets_BT, "cross_entropy", ignore=PAD)
    loss.backward()
    return loss.item(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])  # type: ignore[union-attr]


@hypothesis.settings(max_examples=30)
@given(
    TEXTS,
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["notebook", "post", "pre"]),
    st.booleans(),
    st.integers(1, 2),
)
def test_shards_and_accumulated_batches_have_the_gradient_of_one_big_batch(
    text: list[list[int]], shards: int, parts: int, block: str, tied: bool, threads: int
) -> None:
    changes = {"shards": shards, "block": block, "tied_output": tied, "batch_size": 9, "threads": threads}
    engine = new_engine(**changes, dropout=0.0)
    expected_loss, expected = by_autograd(engine, cut(text, 1)[0])
    for _ in range(2):  # nothing of one update stays for the next
        loss, norm = engine.compute(cut(text, parts))
        assert loss == pytest.approx(expected_loss, rel=1e-6)
        gradient = engine.weights.grad
        assert gradient is not None
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=5e-6)
        assert norm == pytest.approx(expected.norm().item(), rel=1e-5)


@pytest.mark.parametrize("block", ["notebook", "post", "pre"])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_window_learns_nothing_where_there_is_nothing_to_predict(block: str, rows: int) -> None:
    """After the end of a sentence, also where the window is alone in its batch."""
    engine = new_engine(block=block, dropout=0.0)
    batch = Windows(sentences([[4, 5], [6], [7, 8, 9, 10]]).ids, context=5).batch(range(rows))
    assert batch.count < batch.targets_BT.numel()
    expected_loss, expected = by_autograd(engine, batch)
    loss, _ = engine.compute([batch])
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    torch.testing.assert_close(engine.weights.grad, expected, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("shards", [2, 3, 8])
def test_dropout_does_not_depend_on_the_shards(shards: int) -> None:
    text = [[4, 5], [6], [7, 8, 9], [10, 11], [12, 13, 14]]
    whole, cut_up = (new_engine(shards=n, batch_size=8, dropout=0.5) for n in (1, shards))
    for _ in range(3):
        loss, _ = whole.compute(cut(text, 2))
        assert cut_up.compute(cut(text, 2))[0] == pytest.approx(loss, rel=1e-6)
        torch.testing.assert_close(cut_up.weights.grad, whole.weights.grad, rtol=1e-5, atol=5e-6)


def run_bytes(**changes: Any) -> tuple[Any, dict[str, bytes]]:
    session = new_session(batch_size=7, epochs=6, d_model=24, **changes)
    return list(session.records()), weights_of(session)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_the_bytes_of_a_run_do_not_depend_on_threads(shards: int) -> None:
    expected = run_bytes(shards=shards, threads=1)
    for threads in (2, 4, 4, 4):
        assert run_bytes(shards=shards, threads=threads) == expected


def test_the_bytes_of_a_run_depend_on_shards_by_no_more_than_rounding() -> None:
    (records, weights), (others, other_weights) = run_bytes(shards=1), run_bytes(shards=4)
    assert weights != other_weights
    assert [record.loss for record in others] == pytest.approx([record.loss for record in records], rel=1e-4)


def test_the_model_and_its_shards_share_one_vector() -> None:
    engine = new_engine(shards=3, batch_size=4, tied_output=True)
    with torch.no_grad():
        engine.weights.zero_()
    assert all(not parameter.any() for parameter in engine.model.parameters())
    engine.compute(cut([[4, 5, 6]], 1))
    assert sum(parameter.numel() for parameter in engine.model.parameters()) == engine.weights.numel()


def test_a_step_clips_to_the_norm_and_no_smaller_gradient() -> None:
    plain = {"optimizer": "sgd", "beta1": 0.0, "schedule": "none", "lr": 1.0, "dropout": 0.0}
    for clip, factor in ((0.0, 1.0), (1e9, 1.0), (0.5, None)):
        engine = new_engine(**plain, clip=clip)
        before = engine.weights.detach().clone()
        _, norm = engine.compute(cut([[4, 5, 6], [7]], 1))
        engine.step(norm)
        moved = (engine.weights.detach() - before).norm().item()
        assert moved == pytest.approx(norm * factor if factor else clip, rel=1e-4)


def test_a_gradient_that_is_not_finite_has_a_norm_that_is_not() -> None:
    engine = new_engine(dropout=0.0)
    with torch.no_grad():
        engine.weights[-1] = math.nan
    loss, norm = engine.compute(cut([[4]], 1))
    assert not math.isfinite(norm) or not math.isfinite(loss)


@pytest.mark.parametrize("optimizer", ["adam", "muon", "adafactor", "soap"])
def test_an_optimiser_moves_the_one_vector_whatever_it_takes(optimizer: str) -> None:
    engine = new_engine(optimizer=optimizer, shards=2, batch_size=4, clip=0.1, dropout=0.0)
    for _ in range(2):  # soap only looks at the first gradient
        before = engine.weights.detach().clone()
        _, norm = engine.compute(cut(TEXT, 1))
        engine.step(norm)
    assert torch.equal(torch.cat([weight.flatten() for weight in engine.model.parameters()]), engine.weights)
    assert not torch.equal(engine.weights, before)
    assert engine.weights.grad is not None
    assert engine.weights.grad.norm().item() == pytest.approx(0.1, rel=1e-4)  # the optimiser saw it clipped


def test_the_result_of_an_average_is_shown_and_taken_away_to_the_bit() -> None:
    engine = new_engine(optimizer="schedulefree", schedule="constant", lr=0.05, dropout=0.0)
    for _ in range(4):
        _, norm = engine.compute(cut(TEXT, 1))
        engine.step(norm)
    trained = engine.weights.detach().clone()
    with engine.result():
        # x = y + (1 - 1/beta1) (z - y)
        z = engine.optimizer.state[engine.weights]["z"]
        torch.testing.assert_close(engine.weights.detach(), trained.lerp(z, 1 - 1 / 0.9))
        assert not torch.equal(engine.weights, trained)
    assert torch.equal(engine.weights, trained)
    _, norm = engine.compute(cut(TEXT, 1))
    engine.step(norm)
    assert not torch.equal(engine.weights, trained)


def test_without_an_average_the_result_is_what_is_trained() -> None:
    engine = new_engine(optimizer="muon")
    before = engine.weights.detach().clone()
    with engine.result():
        assert torch.equal(engine.weights, before)
    assert not engine.averages

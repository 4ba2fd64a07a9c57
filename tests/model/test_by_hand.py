"""The gradients written out by hand against those of autograd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stages.model.by_hand import ByHand
from stages.model.language_model import LanguageModel, initialise, language_model_loss
from stages.params import TrainParams
from stages.text.vocabulary import PAD
from stages.training.randomness import Masks
from stages.training.session import model_config

WORDS = 11


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """So that a wrong formula cannot hide in rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def new_model(**settings: object) -> LanguageModel:
    settings = {"d_model": 8, "n_heads": 3, "hidden": 10, **settings}
    model = LanguageModel(model_config(TrainParams(**settings), WORDS))
    initialise(model, torch.Generator().manual_seed(0))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))  # whatever was there is overwritten
    return model


@pytest.mark.parametrize("kind", ["cross_entropy", "notebook"])
@pytest.mark.parametrize("heads", ["full", "split"])
@pytest.mark.parametrize(("layers", "rows"), [(1, 1), (2, 3)])
@pytest.mark.parametrize("dropout", [True, False])
def test_loss_and_gradients_are_autograds(kind: str, heads: str, layers: int, rows: int, dropout: bool) -> None:
    model = new_model(layers=layers, heads=heads, n_heads=2 if heads == "split" else 3)
    source = torch.Generator().manual_seed(1)
    inputs_BT = torch.randint(1, WORDS, (rows, 6), generator=source)
    targets_BT = torch.randint(1, WORDS, (rows, 6), generator=source)
    targets_BT[rows - 1, 4:] = PAD
    masks = torch.empty(model.dropouts, rows, 6, 8).bernoulli_(0.7, generator=source) / 0.7 if dropout else None

    by_hand = ByHand(model)
    loss = by_hand.loss_and_gradients(inputs_BT, targets_BT, None if masks is None else masks.numpy(), kind, 0.25)
    found = [parameter.grad.clone() for parameter in model.parameters()]

    model.zero_grad()
    logits_BTV, _ = model(inputs_BT, Masks(masks.unbind(0))) if dropout else model(inputs_BT)
    expected = language_model_loss(logits_BTV, targets_BT, kind, ignore=PAD, reduction="sum")
    (0.25 * expected).backward()
    assert loss == pytest.approx(expected.item(), abs=1e-12)
    for gradient, (name, parameter) in zip(found, model.named_parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-10, atol=1e-12, msg=name)


def test_the_gradient_is_that_of_finite_differences() -> None:
    """Independent of autograd's formulas: the loss moves as the gradient of one weight of each parameter says."""
    model = new_model()
    inputs_BT, targets_BT = torch.tensor([[1, 4, 5, 4]]), torch.tensor([[4, 5, 4, 2]])
    ByHand(model).loss_and_gradients(inputs_BT, targets_BT, None, "cross_entropy", 1.0)
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        at = gradients[name].abs().argmax()
        losses = []
        for step in (1e-6, -2e-6):
            parameter.data.view(-1)[at] += step
            losses.append(ByHand(model).loss_and_gradients(inputs_BT, targets_BT, None, "cross_entropy", 1.0))
        assert (losses[0] - losses[1]) / 2e-6 == pytest.approx(gradients[name].view(-1)[at].item(), rel=1e-5), name
        parameter.data.view(-1)[at] += 1e-6


@pytest.mark.parametrize("settings", [{"block": "pre"}, {"activation": "gelu"}, {"tied_output": True}])
def test_other_models_are_left_to_autograd(settings: dict[str, object]) -> None:
    assert not ByHand.fits(new_model(**settings), 6)


def test_long_sentences_are_left_to_autograd() -> None:
    assert ByHand.fits(new_model(), 128)
    assert not ByHand.fits(new_model(), 129)

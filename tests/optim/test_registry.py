"""Each optimiser of params.yaml against its own class, given the same gradients by hand."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import pytorch_optimizer
import torch
from torch import nn

from stages.errors import ParamError
from stages.model.language_model import LanguageModel, initialise
from stages.optim.knobs import OPTIMIZERS
from stages.optim.registry import make_optimizer
from stages.optim.schedules import SCHEDULES, noam_rate
from stages.params import Params, TrainParams, parse_params
from stages.training.engine import Engine
from stages.training.randomness import Dropout, generator
from stages.training.session import model_config
from tests.conftest import ROOT
from tests.training.small import TEXT, VOCABULARY, new_session, sentences, settings, updates, validations, weights_of

EXTRA = [name for name, kind in OPTIMIZERS.items() if kind.extra]
Made = list[torch.optim.Optimizer]
ADAM: dict[str, Any] = {"betas": (0.7, 0.9), "eps": 1e-3, "weight_decay": 0.1}
BETAS: dict[str, Any] = {"betas": (0.7, 0.9), "weight_decay": 0.1}


def muon(model: LanguageModel) -> Made:
    layers = [
        layer
        for block in model.blocks
        for layer in (block.attention.qkv, block.attention.out, block.feed_forward.w1, block.feed_forward.w2)  # type: ignore[union-attr]
    ]
    matrices = [layer.weight for layer in layers]  # type: ignore[union-attr]
    rest = [weight for weight in model.parameters() if all(weight is not matrix for matrix in matrices)]
    assert {tuple(weight.shape) for weight in rest} == {(VOCABULARY, 12), (VOCABULARY,), (12,), (10,)}
    return [
        torch.optim.Muon(matrices, momentum=0.7, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, **ADAM),
    ]


def one(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[[LanguageModel], Made]:
    return lambda model: [kind(model.parameters(), **options)]


# What params.yaml says, and what a reader of it would write in torch. Without a form of decay it is the usual one.
REFERENCES: dict[tuple[str, str], Callable[[LanguageModel], Made]] = {
    ("adam", "usual"): one(torch.optim.Adam, **ADAM),
    ("adam", "l2"): one(torch.optim.Adam, **ADAM),
    ("adam", "decoupled"): one(torch.optim.AdamW, **ADAM),
    ("adamw", "usual"): one(torch.optim.AdamW, **ADAM),
    ("nadam", "usual"): one(torch.optim.NAdam, **ADAM),
    ("nadam", "decoupled"): one(torch.optim.NAdam, **ADAM, decoupled_weight_decay=True),
    ("radam", "usual"): one(torch.optim.RAdam, **ADAM),
    ("radam", "decoupled"): one(torch.optim.RAdam, **ADAM, decoupled_weight_decay=True),
    ("adafactor", "usual"): one(torch.optim.Adafactor, weight_decay=0.1),
    ("muon", "usual"): muon,
    ("sgd", "usual"): one(torch.optim.SGD, momentum=0.7, weight_decay=0.1),
    ("adagrad", "usual"): one(torch.optim.Adagrad, eps=1e-3, weight_decay=0.1),
    ("lion", "usual"): one(pytorch_optimizer.Lion, **BETAS),
    ("lion", "l2"): one(pytorch_optimizer.Lion, **BETAS, weight_decouple=False),
    ("soap", "usual"): one(pytorch_optimizer.SOAP, **ADAM),
    ("ademamix", "usual"): one(
        pytorch_optimizer.AdEMAMix, **ADAM | {"betas": (0.7, 0.9, 0.9999)}, t_alpha_beta3=40, weight_decouple=True
    ),
    ("ademamix", "l2"): one(pytorch_optimizer.AdEMAMix, **ADAM | {"betas": (0.7, 0.9, 0.9999)}, t_alpha_beta3=40),
    ("prodigy", "usual"): one(pytorch_optimizer.Prodigy, **ADAM, safeguard_warmup=True),
    ("prodigy", "l2"): one(pytorch_optimizer.Prodigy, **ADAM, safeguard_warmup=True, weight_decouple=False),
    ("schedulefree", "usual"): one(pytorch_optimizer.ScheduleFreeAdamW, **ADAM),
}


def rate_of(optimizer: str) -> float:
    """One that the tests can see the effect of; prodigy multiplies it by what it finds, 1e-6 at first."""
    return 100.0 if optimizer == "prodigy" else 0.02


def trained_and_by_hand(optimizer: str, form: str, count: int = 14) -> tuple[LanguageModel, LanguageModel]:
    """A model that an engine trained, and one that got the same gradients from the reference."""
    lr = rate_of(optimizer)
    chosen = settings(
        optimizer=optimizer, decay_form=form, schedule="constant", lr=lr, beta1=0.7, beta2=0.9, eps=1e-3, decay=0.1
    )
    model = LanguageModel(model_config(chosen, VOCABULARY))
    initialise(model, generator(0, "init"))
    theirs = copy.deepcopy(model)
    engine = Engine(model, chosen, Dropout(0.0, generator(0, "dropout")), updates=40)
    by_hand = REFERENCES[optimizer, form](theirs)
    text = sentences(TEXT)
    for t in range(1, count + 1):
        _, norm = engine.compute([text.batch([t % 7])])
        gradient = engine.weights.grad
        assert gradient is not None
        sizes = [weight.numel() for weight in theirs.parameters()]
        for weight, part in zip(theirs.parameters(), gradient.clone().split(sizes), strict=True):
            weight.grad = part.view_as(weight)
        engine.step(norm)
        for base in by_hand:
            for group in base.param_groups:
                group["lr"] = lr * min(t / 5, 1)
            base.step()
    return model, theirs


@pytest.mark.parametrize(("optimizer", "form"), REFERENCES, ids=map(" ".join, REFERENCES))
def test_each_name_is_that_optimiser_with_its_settings(optimizer: str, form: str) -> None:
    """Over the first update, the ramp and, for soap, a new basis; all weights as one vector or in their shapes."""
    ours, theirs = trained_and_by_hand(optimizer, form)
    start = copy.deepcopy(ours)
    initialise(start, generator(0, "init"))
    assert (ours.output.weight - start.output.weight).abs().max() > 1e-3
    for (name, weight), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        close = {"rtol": 1e-4, "atol": 1e-5} if optimizer == "prodigy" else {"rtol": 1e-5, "atol": 1e-6}
        # (What prodigy sums over all weights, it sums in another order.)
        torch.testing.assert_close(weight, expected, **close, msg=lambda text, name=name: f"{name}: {text}")


def test_no_optimiser_and_no_form_of_decay_is_without_its_reference() -> None:
    forms = {(name, form) for name, kind in OPTIMIZERS.items() for form in ("usual", *kind.decay[1:])}
    assert forms | {("adam", "l2")} == REFERENCES.keys()


@pytest.mark.parametrize("optimizer", [name for name, kind in OPTIMIZERS.items() if len(kind.decay) == 2])
def test_the_two_forms_of_decay_are_two(optimizer: str) -> None:
    usual = trained_and_by_hand(optimizer, "usual")[0].output.weight
    other = trained_and_by_hand(optimizer, OPTIMIZERS[optimizer].decay[1])[0].output.weight
    assert (usual - other).abs().max() > 1e-4


def test_lion_moves_by_the_rate_whatever_the_gradient() -> None:
    weight = nn.Parameter(torch.zeros(3))
    optimizer = make_optimizer([("w", weight)], settings(optimizer="lion", schedule="none", lr=0.25), updates=9)
    weight.grad = torch.tensor([1e-6, -5.0, 0.0])
    optimizer.step()
    assert weight.tolist() == [-0.25, 0.25, 0.0]


def test_the_slow_average_of_ademamix_rises_over_the_whole_run() -> None:
    for run in (10, 1000):
        made = make_optimizer([("w", nn.Parameter(torch.ones(2)))], settings(optimizer="ademamix"), updates=run)
        assert made.param_groups[0]["t_alpha_beta3"] == run


# --- every pair -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_pair_trains_or_is_refused_with_both_names(optimizer: str, schedule: str) -> None:
    pair: dict[str, Any] = {"optimizer": optimizer, "schedule": schedule, "lr": rate_of(optimizer), "max_updates": 5}
    refused = {("schedulefree", name) for name in SCHEDULES if name not in ("constant", "none")} | {("prodigy", "noam")}
    if (optimizer, schedule) in refused:
        with pytest.raises(
            ParamError, match=rf"schedule = {schedule}: expected, with optimizer: {optimizer}, "
        ) as caught:
            parse_params(Params().model_dump() | pair)
        assert "\n" not in str(caught.value)
        return
    parse_params(Params().model_dump() | pair)
    session = new_session(**pair)
    before = weights_of(session)
    records = list(session.records())
    assert [record.step for record in updates(records)] == [1, 2, 3, 4, 5]
    assert len(validations(records)) == 2  # which are finite: there is no divergence among the records
    assert len(records) == 7
    assert all(content != before[name] for name, content in weights_of(session).items())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equal_seeds_give_equal_bytes(optimizer: str) -> None:
    changes: dict[str, Any] = {"optimizer": optimizer, "schedule": "constant", "lr": rate_of(optimizer), "d_model": 24}
    one, same = new_session(**changes), new_session(**changes)
    assert list(one.records()) == list(same.records())
    assert weights_of(one) == weights_of(same)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("noam", [noam_rate(t, 64, 2, 3.0) for t in (1, 2, 3, 12)]),
        ("inverse_sqrt", [0.05, 0.1, 0.1 * (2 / 3) ** 0.5, 0.1 * (2 / 12) ** 0.5]),
        ("constant", [0.05, 0.1, 0.1, 0.1]),
        ("cosine", [0.05, 0.1, 0.02 + 0.08 * 0.975528258, 0.02]),
        ("linear", [0.05, 0.1, 0.092, 0.02]),
        ("wsd", [0.05, 0.1, 0.1, 0.02]),
        ("none", [0.1, 0.1, 0.1, 0.1]),
    ],
)
def test_each_name_is_that_schedule_with_its_settings(schedule: Any, rates: list[float]) -> None:
    chosen = TrainParams(schedule=schedule, d_model=64, warmup=2, factor=3.0, lr=0.1, min_lr=0.02, decay_fraction=0.25)
    optimizer = make_optimizer([("w", nn.Parameter(torch.ones(1)))], chosen, updates=12)
    assert [optimizer.rate(t) for t in (1, 2, 3, 12)] == pytest.approx(rates)
    assert optimizer.rate(10) == pytest.approx({"wsd": 0.1 - 0.08 / 3}.get(schedule, optimizer.rate(10)))


def test_the_counting_reaches_the_optimiser() -> None:
    chosen = TrainParams(schedule="inverse_sqrt", counting="fairseq", warmup=2, lr=0.1)
    optimizer = make_optimizer([("w", nn.Parameter(torch.ones(1)))], chosen, updates=12)
    assert [optimizer.rate(t) for t in (1, 2, 3)] == pytest.approx([0.0, 0.05, 0.1])


def test_muon_and_its_partner_are_one_optimiser() -> None:
    model = LanguageModel(model_config(settings(), VOCABULARY))
    optimizer = make_optimizer(model.named_parameters(), settings(optimizer="muon"), updates=9)
    twin = copy.deepcopy(optimizer)
    for made in (optimizer, twin):
        for group in made.param_groups:
            for weight in group["params"]:
                weight.grad = torch.ones_like(weight)
        assert made.step(lambda: 0.5) == 0.5
        assert {group["lr"] for group in made.param_groups} == {made.rate(1)}
        assert [len(group["params"]) for group in made.param_groups] == [8, 17]
        assert len(made.state) == 25
    for ours, theirs in zip(optimizer.param_groups, twin.param_groups, strict=True):
        assert all(torch.equal(a, b) and a is not b for a, b in zip(ours["params"], theirs["params"], strict=True))


@pytest.mark.parametrize("optimizer", ["adam", "muon", "adafactor", "nadam"])
def test_what_a_run_does_not_use_it_does_not_load(optimizer: str) -> None:
    script = (
        "import sys; from stages import numerics; numerics.set_numerics('portable'); "
        "from tests.training.small import new_session; "
        f"list(new_session(optimizer={optimizer!r}, max_updates=2).records()); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "torch.optim.adam" in loaded
    assert loaded & {"pytorch_optimizer", "torch._dynamo"} == set()

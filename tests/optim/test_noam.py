"""The Noam optimiser, as a schedule and as a torch optimiser."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stages.optim.noam import NoamOptimizer, ScheduledOptimizer
from stages.optim.schedules import noam_rate

# d = 64, warmup = 10: reference values of updates, the peak among them
ANCHORS = {1: 0.003953, 2: 0.007906, 9: 0.035576, 10: 0.039528, 11: 0.037689, 12: 0.036084}
INPUTS_ND = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    source = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(generator=source)
    return model


def noam(model: nn.Module, **options: Any) -> NoamOptimizer:
    return NoamOptimizer(model.parameters(), **{"d_model": 64, "warmup": 10, "decay": 0} | options)


def loss_of(model: nn.Module) -> Tensor:
    return model(INPUTS_ND.to(next(model.parameters()).dtype)).square().mean()


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    loss_of(model).backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(optimizer.param_groups[0]["lr"])


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


# --- the schedule ---------------------------------------------------------------------------------


def test_the_twelve_rates_in_the_optimiser_are_the_papers() -> None:
    model = network()
    optimizer = noam(model)
    rates = [update(model, optimizer) for _ in range(12)]
    assert {t: rates[t - 1] for t in ANCHORS} == pytest.approx(ANCHORS, abs=1e-6)
    assert rates == pytest.approx([64**-0.5 * min(t**-0.5, t * 10**-1.5) for t in range(1, 13)], rel=1e-6)
    assert all(a < b for a, b in itertools.pairwise(rates[:10]))
    assert all(a > b for a, b in itertools.pairwise(rates[9:]))


def test_the_decay_has_no_floor() -> None:
    model = network()
    optimizer = noam(model)
    rates = [update(model, optimizer) for _ in range(400)]
    assert rates[399] == pytest.approx(rates[99] / 2, rel=1e-12)


def test_each_update_uses_the_rate_that_it_shows() -> None:
    model = network()
    optimizer = noam(model, base=torch.optim.SGD)
    for t in range(1, 13):
        before = [weight.detach().clone() for weight in model.parameters()]
        loss_of(model).backward()
        gradients = [weight.grad.clone() for weight in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        for weight, old, gradient in zip(model.parameters(), before, gradients, strict=True):
            torch.testing.assert_close(weight.detach(), old - noam_rate(t, 64, 10) * gradient)


def test_rate_is_of_the_last_update_or_of_any() -> None:
    model = network()
    optimizer = noam(model, init_lr=0.5)
    assert (optimizer.updates, optimizer.rate(), optimizer.param_groups[0]["lr"]) == (0, 0.5, 0.5)
    update(model, optimizer)
    assert (optimizer.updates, optimizer.rate()) == (1, noam_rate(1, 64, 10))
    assert optimizer.rate(10) == noam_rate(10, 64, 10)


# --- the notebook's call --------------------------------------------------------------------------


def test_the_signature_is_the_notebooks_and_the_rest_is_by_keyword() -> None:
    parameters = inspect.signature(NoamOptimizer).parameters
    positional = {n: p.default for n, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD}
    keywords = {n: p.default for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert list(positional.items()) == [
        ("params", inspect.Parameter.empty),
        ("d_model", inspect.Parameter.empty),
        ("warmup", 40000),
        ("init_lr", 0),
        ("eps", 1e-9),
        ("decay", 0.01),
    ]
    assert keywords == {"factor": 1.0, "betas": (0.9, 0.98), "decoupled": False, "base": torch.optim.Adam}
    assert "4000" in str(NoamOptimizer.__doc__)


def test_the_notebooks_loop_runs_as_written() -> None:
    d_model = 128
    model = network()
    optimizer = NoamOptimizer(model.parameters(), d_model, decay=0)
    criterion = nn.CrossEntropyLoss()
    losses = []
    for _ in range(3):
        for x in INPUTS_ND:
            optimizer.zero_grad()
            loss = criterion(model(x[None]), torch.tensor([1]))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert optimizer.rate() == pytest.approx(24 * 128**-0.5 * 40000**-1.5, rel=1e-9)
    assert sum(losses[-8:]) < sum(losses[:8])


# --- the update is the base's ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({}, lambda p: torch.optim.Adam(p, betas=(0.9, 0.98), eps=1e-9, fused=True)),
        ({"foreach": False}, lambda p: torch.optim.Adam(p, betas=(0.9, 0.98), eps=1e-9)),
        ({"betas": (0.8, 0.9), "eps": 1e-4}, lambda p: torch.optim.Adam(p, betas=(0.8, 0.9), eps=1e-4, fused=True)),
        ({"decay": 0.3}, lambda p: torch.optim.Adam(p, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.3, fused=True)),
        (
            {"decay": 0.3, "decoupled": True},
            lambda p: torch.optim.AdamW(p, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.3, fused=True),
        ),
        (
            {"decay": 0.3, "base": torch.optim.AdamW},
            lambda p: torch.optim.AdamW(p, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.3, fused=True),
        ),
        ({"amsgrad": True}, lambda p: torch.optim.Adam(p, betas=(0.9, 0.98), eps=1e-9, amsgrad=True, fused=True)),
        ({"base": torch.optim.SGD, "momentum": 0.9}, lambda p: torch.optim.SGD(p, momentum=0.9)),
        ({"base": torch.optim.Adagrad, "decay": 0.1}, lambda p: torch.optim.Adagrad(p, eps=1e-9, weight_decay=0.1)),
        ({"base": torch.optim.NAdam}, lambda p: torch.optim.NAdam(p, betas=(0.9, 0.98), eps=1e-9)),
        ({"base": torch.optim.RMSprop}, lambda p: torch.optim.RMSprop(p, eps=1e-9)),
        ({"factor": 3.0}, lambda p: torch.optim.Adam(p, betas=(0.9, 0.98), eps=1e-9, fused=True)),
    ],
)
def test_the_trajectory_is_that_of_torchs_optimiser_at_the_same_rates(
    options: dict[str, Any], reference: Callable[..., torch.optim.Optimizer], dtype: torch.dtype
) -> None:
    ours, theirs = network(dtype), network(dtype)
    optimizer, plain = noam(ours, **options), reference(theirs.parameters())
    for t in range(1, 21):
        for group in plain.param_groups:
            group["lr"] = options.get("factor", 1.0) * 64**-0.5 * min(t**-0.5, t * 10**-1.5)
        update(theirs, plain)
        update(ours, optimizer)
    for mine, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, expected, rtol=1e-12 if dtype == torch.float64 else 1e-6, atol=0)
    assert not same(ours, network(dtype))


def test_decay_inside_the_gradient_and_decoupled_decay_differ() -> None:
    inside, beside = network(), network()
    first, second = noam(inside, decay=0.3), noam(beside, decay=0.3, decoupled=True)
    for _ in range(3):
        update(inside, first)
        update(beside, second)
    assert not same(inside, beside)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"warmup": 0}, ValueError, "warmup = 0: expected a number ≥ 1"),
        ({"d_model": 0}, ValueError, "d_model = 0: expected a number ≥ 1"),
        ({"factor": 0.0}, ValueError, "factor = 0.0: expected a number > 0"),
        ({"base": torch.optim.LBFGS, "decay": 0.1}, TypeError, "LBFGS has no weight decay, yet decay = 0.1"),
        ({"base": torch.optim.SGD, "decoupled": True}, TypeError, "SGD has no decoupled weight decay"),
        ({"base": torch.optim.SGD, "amsgrad": True}, TypeError, "amsgrad"),
        ({"betas": (1.0, 0.9)}, ValueError, "beta"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        noam(network(), **options)


# --- what torch's optimisers can do ---------------------------------------------------------------


def test_it_is_a_torch_optimiser_that_shares_groups_and_state_with_its_base() -> None:
    model = network()
    optimizer = noam(model)
    assert isinstance(optimizer, torch.optim.Optimizer)
    update(model, optimizer)
    assert optimizer.param_groups is optimizer.base.param_groups
    assert optimizer.state is optimizer.base.state
    assert set(optimizer.state) == set(model.parameters())
    assert "NoamOptimizer" in repr(optimizer)


@pytest.mark.parametrize(
    "form",
    [
        lambda model: model.parameters(),
        lambda model: list(model.parameters()),
        lambda model: model.named_parameters(),
        lambda model: [{"params": model[0].parameters()}, {"params": list(model[2].parameters())}],
        lambda model: [{"params": model[0].weight}, {"params": [model[0].bias, *model[2].parameters()]}],
    ],
)
def test_parameters_come_in_all_of_torchs_forms(form: Callable[[nn.Module], Any]) -> None:
    plain, model = network(), network()
    reference, optimizer = noam(plain), NoamOptimizer(form(model), 64, 10, decay=0)
    for _ in range(3):
        update(plain, reference)
        update(model, optimizer)
    assert same(model, plain)


def test_groups_keep_their_own_options() -> None:
    model = network()
    groups = [{"params": model[0].parameters(), "weight_decay": 0.5}, {"params": model[2].parameters()}]
    optimizer = NoamOptimizer(groups, 64, 10, decay=0.1)
    update(model, optimizer)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.1]
    assert {group["lr"] for group in optimizer.param_groups} == {noam_rate(1, 64, 10)}


@pytest.mark.parametrize("base", [torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad, torch.optim.NAdam])
@pytest.mark.parametrize("times", [1, 3])
def test_resuming_from_a_saved_state_is_the_uninterrupted_run(base: type[torch.optim.Optimizer], times: int) -> None:
    straight, model = network(), network()
    through, optimizer = noam(straight, base=base), noam(model, base=base)
    rates = [update(straight, through) for _ in range(30)]
    for _ in range(15):
        update(model, optimizer)

    resumed = network()
    for _ in range(times):
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        checkpoint = torch.load(file, weights_only=True)
        resumed.load_state_dict(checkpoint["model"])
        again = noam(resumed, base=base)
        again.load_state_dict(checkpoint["optimizer"])
        model, optimizer = resumed, again
    assert (optimizer.updates, optimizer.rate()) == (15, rates[14])
    assert [update(model, optimizer) for _ in range(15)] == rates[15:]
    assert same(model, straight)


def test_a_loaded_state_keeps_the_schedule_that_was_asked_for() -> None:
    model = network()
    optimizer = noam(model)
    for _ in range(5):
        update(model, optimizer)
    longer = noam(model, warmup=20)
    longer.load_state_dict(optimizer.state_dict())
    assert update(model, longer) == noam_rate(6, 64, 20)


def test_the_state_of_plain_adam_is_taken_over_with_its_step() -> None:
    plain, model = network(), network()
    adam = torch.optim.Adam(plain.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    for _ in range(7):
        update(plain, adam)
    model.load_state_dict(plain.state_dict())
    optimizer = noam(model)
    optimizer.load_state_dict(copy.deepcopy(adam.state_dict()))
    assert optimizer.updates == 7
    adam.param_groups[0]["lr"] = noam_rate(8, 64, 10)
    update(plain, adam)
    assert update(model, optimizer) == noam_rate(8, 64, 10)
    for mine, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_go_their_own_way(clone: Callable[[Any], Any], scheduled: bool) -> None:
    model = network()
    optimizer = noam(model)
    if scheduled:
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    for _ in range(4):
        update(model, optimizer)
    other_model, other = clone((model, optimizer))
    assert other.param_groups is other.base.param_groups
    assert other.state is other.base.state
    assert update(other_model, other) == noam_rate(5, 64, 10)
    assert (optimizer.updates, other.updates) == (4, 5)
    assert not same(model, other_model)
    update(model, optimizer)
    assert same(model, other_model)


def test_a_closure_is_called_and_its_value_returned() -> None:
    plain, model = network(), network()
    reference, optimizer = noam(plain), noam(model)
    update(plain, reference)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    expected = loss_of(model).item()
    assert optimizer.step(closure).item() == expected
    assert same(model, plain)
    assert optimizer.updates == 1


def test_lbfgs_needs_its_closure_and_gets_it() -> None:
    model = network()
    optimizer = noam(model, base=torch.optim.LBFGS, warmup=1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    first = optimizer.step(closure).item()
    assert loss_of(model).item() < first


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none: bool) -> None:
    model = network()
    optimizer = noam(model)
    loss_of(model).backward()
    optimizer.zero_grad(set_to_none=set_to_none)
    gradients = [weight.grad for weight in model.parameters()]
    assert all(g is None if set_to_none else not g.any() for g in gradients)


def test_a_group_added_later_trains_with_the_others() -> None:
    model, extra = network(), nn.Parameter(torch.ones(2))
    optimizer = noam(model)
    for _ in range(3):
        update(model, optimizer)
    optimizer.add_param_group({"params": [extra]})
    extra.grad = torch.ones(2)
    update(model, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [noam_rate(4, 64, 10)] * 2
    # Adam's first update has the size of the rate.
    torch.testing.assert_close(extra.detach(), torch.full((2,), 1 - noam_rate(4, 64, 10)))


def test_torchs_clipping_is_felt() -> None:
    model = network()
    optimizer = noam(model, base=torch.optim.SGD, warmup=1)
    before = [weight.detach().clone() for weight in model.parameters()]
    loss_of(model).backward()
    torch.nn.utils.clip_grad_norm_([w for group in optimizer.param_groups for w in group["params"]], 0.01)
    optimizer.step()
    steps = [weight.detach() - old for weight, old in zip(model.parameters(), before, strict=True)]
    assert torch.nn.utils.get_total_norm(steps).item() == pytest.approx(0.01 * noam_rate(1, 64, 1), rel=1e-3)


def test_a_gradient_scaler_that_skips_an_update_does_not_move_the_schedule() -> None:
    plain, model = network(), network()
    reference, optimizer = noam(plain), noam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for factor in (1.0, float("inf"), 1.0):
        scaler.scale(loss_of(model) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    rates = [update(plain, reference) for _ in range(2)]
    assert (optimizer.updates, optimizer.rate()) == (2, rates[-1])
    for mine, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, expected)


def test_hooks_see_each_step_once() -> None:
    model = network()
    optimizer = noam(model)
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(f"before {optimizer.updates}"))
    optimizer.register_step_post_hook(lambda *_: seen.append(f"after {optimizer.updates}"))
    optimizer.register_state_dict_post_hook(lambda _, state: seen.append("saved"))
    update(model, optimizer)
    optimizer.state_dict()
    assert seen == ["before 0", "after 1", "saved"]


def test_a_torch_scheduler_cannot_change_the_rate_and_one_warning_says_so() -> None:
    model = network()
    optimizer = noam(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    rates = [update(model, optimizer)]
    scheduler.step()
    with pytest.warns(UserWarning, match="the schedule sets the rate"):
        rates.append(update(model, optimizer))
    for _ in range(3):  # without a second warning, which would be an error
        scheduler.step()
        rates.append(update(model, optimizer))
    assert rates == [noam_rate(t, 64, 10) for t in range(1, 6)]


def test_ordinary_use_warns_of_nothing() -> None:
    model = network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = noam(model, init_lr=0.1)
        update(model, optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        update(model, optimizer)
        fresh = noam(model)
        fresh.load_state_dict(optimizer.state_dict())
        update(model, fresh)
        fresh.load_state_dict(torch.optim.Adam(model.parameters(), lr=0.7).state_dict())
        update(model, fresh)
        torch.optim.lr_scheduler.LambdaLR(fresh, lambda _: 1.0)
        update(model, fresh)
        fresh.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        update(model, fresh)
        update(*copy.deepcopy((model, fresh)))


def test_a_differentiable_update_can_be_asked_for() -> None:
    assert noam(network(), differentiable=True).param_groups[0]["differentiable"] is True


def test_any_schedule_drives_any_base() -> None:
    model = network()
    optimizer = ScheduledOptimizer(model.parameters(), torch.optim.SGD, lambda t: 0.1 / t)
    assert [update(model, optimizer) for _ in range(3)] == [0.1, 0.05, 0.1 / 3]


@pytest.mark.parametrize(("decay", "decoupled"), [(0.0, False), (0.1, False), (0.1, True)])
@pytest.mark.parametrize("adam", [torch.optim.Adam, torch.optim.AdamW])
def test_one_tensor_is_updated_as_torch_updates_it_to_the_bit(
    adam: type[torch.optim.Optimizer], decay: float, decoupled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> tuple[bytes, dict[str, Any]]:
        source = torch.Generator().manual_seed(0)
        weights = torch.nn.Parameter(torch.randn(1000, generator=source))
        options: dict[str, Any] = {"base": adam} if adam is torch.optim.AdamW else {"decoupled": decoupled}
        optimizer = NoamOptimizer([weights], 16, warmup=5, decay=decay, **options)
        for _ in range(7):
            weights.grad = torch.randn(1000, generator=source)
            optimizer.update()
        return weights.detach().numpy().tobytes(), optimizer.state_dict()["state"][0]

    ours, state = trained()
    called: list[bool] = []
    monkeypatch.setattr("stages.optim.noam._update_one_tensor", lambda base: bool(called.append(True)))
    theirs, expected = trained()
    assert len(called) == 7
    assert ours == theirs
    assert state["step"] == expected["step"] == 7
    assert all(torch.equal(state[name], expected[name]) for name in ("exp_avg", "exp_avg_sq"))

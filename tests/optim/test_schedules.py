"""The schedules against the values and the properties of Vaswani et al. 2017, equation 3."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.optim.schedules import (
    COUNTINGS,
    SCHEDULES,
    Schedule,
    constant_rate,
    cosine_rate,
    inverse_sqrt_rate,
    linear_rate,
    make_schedule,
    noam_rate,
    wsd_rate,
)

WIDTHS = st.integers(1, 4096)
WARMUPS = st.integers(1, 100_000)
UPDATES = st.integers(1, 10_000_000)


@pytest.mark.parametrize(
    ("d_model", "warmup", "t", "rate"),
    [
        (256, 4000, 1, 2.470529e-07),
        (256, 4000, 100, 2.470529e-05),
        (256, 4000, 4000, 9.882118e-04),
        (256, 4000, 10_000, 6.250000e-04),
        (256, 4000, 100_000, 1.976424e-04),
        (512, 4000, 1, 1.746928e-07),
        (512, 4000, 100, 1.746928e-05),
        (512, 4000, 4000, 6.987712e-04),
        (512, 4000, 10_000, 4.419417e-04),
        (512, 4000, 100_000, 1.397542e-04),
        (128, 4000, 1, 3.493856e-07),
        (128, 4000, 4000, 1.397542e-03),
        (128, 4000, 16_000, 6.987712e-04),
    ],
)
def test_known_values(d_model: int, warmup: int, t: int, rate: float) -> None:
    assert noam_rate(t, d_model, warmup) == pytest.approx(rate, rel=1e-6)


def test_the_notebooks_last_rate_is_far_below_its_peak() -> None:
    assert f"{noam_rate(2700, 128, 40000):.2e}" == "2.98e-05"


@given(WIDTHS, WARMUPS)
def test_the_peak_is_at_the_warmup(d_model: int, warmup: int) -> None:
    peak = noam_rate(warmup, d_model, warmup)
    assert peak == pytest.approx((d_model * warmup) ** -0.5, rel=1e-12)
    assert noam_rate(warmup + 1, d_model, warmup) < peak
    if warmup > 1:
        assert noam_rate(warmup - 1, d_model, warmup) < peak


@given(WIDTHS, WARMUPS, UPDATES)
def test_a_line_up_then_an_inverse_square_root_without_a_floor(d_model: int, warmup: int, t: int) -> None:
    rate = noam_rate(t, d_model, warmup)
    if t <= warmup:
        assert rate == pytest.approx(t * noam_rate(1, d_model, warmup), rel=1e-9)
        assert noam_rate(t + 1, d_model, warmup) > rate or t == warmup
    else:
        assert rate * math.sqrt(t) == pytest.approx(d_model**-0.5, rel=1e-9)
        assert noam_rate(t + 1, d_model, warmup) < rate
        assert noam_rate(4 * t, d_model, warmup) == pytest.approx(rate / 2, rel=1e-9)


@given(WIDTHS, WARMUPS, UPDATES, st.floats(1e-3, 1e3))
def test_the_factor_multiplies(d_model: int, warmup: int, t: int, factor: float) -> None:
    assert noam_rate(t, d_model, warmup, factor) == pytest.approx(factor * noam_rate(t, d_model, warmup), rel=1e-12)


@given(WARMUPS, UPDATES)
def test_the_inverse_square_root_is_noam_with_its_peak_named(warmup: int, t: int) -> None:
    assert inverse_sqrt_rate(t, (256 * warmup) ** -0.5, warmup) == pytest.approx(noam_rate(t, 256, warmup), rel=1e-9)


@given(WARMUPS, UPDATES)
def test_the_constant_rate_stays_at_its_peak(warmup: int, t: int) -> None:
    assert constant_rate(t, 0.01, warmup) == (0.01 if t >= warmup else pytest.approx(0.01 * t / warmup))


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("noam", [1e-3 * t for t in (1, 2, 3, 4)] + [8e-3 * 5**-0.5]),
        ("inverse_sqrt", [0.5, 1.0, 1.5, 2.0, 4 * 5**-0.5]),
        ("constant", [0.5, 1.0, 1.5, 2.0, 2.0]),
        ("cosine", [0.5, 1.0, 1.5, 2.0, 2 * (1 + math.cos(math.pi / 8)) / 2]),
        ("linear", [0.5, 1.0, 1.5, 2.0, 2 * 7 / 8]),
        ("wsd", [0.5, 1.0, 1.5, 2.0, 2.0]),
        ("none", [2.0] * 5),
    ],
)
def test_schedules_by_name(name: str, rates: list[float]) -> None:
    schedule = make_schedule(name, d_model=4, warmup=4, factor=0.016, lr=2.0, updates=12)
    assert [schedule(t) for t in range(1, 6)] == pytest.approx(rates)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((0, 64, 10), "t = 0"), ((-1, 64, 10), "t = -1"), ((1, 0, 10), "d_model = 0"), ((1, 64, 0), "warmup = 0")],
)
def test_counting_starts_at_one(arguments: tuple[int, int, int], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}: expected a number ≥ 1"):
        noam_rate(*arguments)


@pytest.mark.parametrize("rate", [inverse_sqrt_rate, constant_rate])
@pytest.mark.parametrize(("t", "warmup"), [(0, 1), (1, 0)])
def test_the_other_schedules_start_there_too(rate: type[constant_rate], t: int, warmup: int) -> None:
    with pytest.raises(ValueError, match="expected a number ≥ 1"):
        rate(t, 0.1, warmup)


@pytest.mark.parametrize("rate", [cosine_rate, linear_rate, wsd_rate])
@pytest.mark.parametrize(("t", "warmup", "updates"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_those_that_fall_start_there_too(rate: type[linear_rate], t: int, warmup: int, updates: int) -> None:
    with pytest.raises(ValueError, match="expected a number ≥ 1"):
        rate(t, 0.1, warmup, updates)


def test_an_unknown_schedule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"'cosin': expected one of {', '.join(SCHEDULES)}"):
        make_schedule("cosin", d_model=1, warmup=1, factor=1.0, lr=1.0)


@pytest.mark.parametrize("name", ["cosine", "linear", "wsd"])
def test_what_falls_to_the_end_has_to_know_the_end(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name!r}: needs the number of updates"):
        make_schedule(name, d_model=1, warmup=1, factor=1.0, lr=1.0)


# --- to the end of the run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("t", "cosine", "linear", "wsd"),
    [
        (1, 0.1, 0.1, 0.1),
        (10, 1.0, 1.0, 1.0),
        (40, 0.2 + 0.8 * 0.75, 0.2 + 0.8 * 2 / 3, 1.0),  # a third of the fall: cos(60°) = 1/2
        (55, 0.6, 0.6, 1.0),
        (70, 0.2 + 0.8 * 0.25, 0.2 + 0.8 / 3, 1.0),
        (80, 0.2 + 0.4 * (1 + math.cos(math.pi * 7 / 9)), 0.2 + 0.8 * 2 / 9, 0.2 + 0.8 * 0.8),
        (90, 0.2 + 0.4 * (1 + math.cos(math.pi * 8 / 9)), 0.2 + 0.8 / 9, 0.2 + 0.8 * 0.4),
        (100, 0.2, 0.2, 0.2),
        (101, 0.2, 0.2, 0.2),
    ],
)
def test_points_of_a_run_of_100_updates(t: int, cosine: float, linear: float, wsd: float) -> None:
    """Ramp 10, peak 1, end 0.2; wsd falls in the last quarter, from update 75 on."""
    assert cosine_rate(t, 1.0, 10, 100, 0.2) == pytest.approx(cosine, rel=1e-12)
    assert linear_rate(t, 1.0, 10, 100, 0.2) == pytest.approx(linear, rel=1e-12)
    assert wsd_rate(t, 1.0, 10, 100, 0.25, 0.2) == pytest.approx(wsd, rel=1e-12)


def test_a_ramp_into_the_fall_leaves_less_of_it() -> None:
    """Warm-up 90 of 100 updates, a fall of 25: it has the last 10."""
    rates = [wsd_rate(t, 1.0, 90, 100, 0.25) for t in (75, 90, 95, 100)]
    assert rates == pytest.approx([75 / 90, 1.0, 0.5, 0.0])


@st.composite
def falling(draw: st.DrawFn) -> tuple[Schedule, float, float, int, int]:
    """A schedule that falls; its lr, min_lr, warmup, updates."""
    lr = draw(st.floats(1e-6, 10))
    low, updates = lr * draw(st.floats(0, 1)), draw(st.integers(1, 10_000))
    warmup = draw(st.integers(1, 12_000))
    name, fraction = draw(st.sampled_from(["cosine", "linear", "wsd"])), draw(st.floats(0.01, 1))
    schedule = make_schedule(
        name, d_model=1, warmup=warmup, factor=1.0, lr=lr, updates=updates, min_lr=low, decay_fraction=fraction
    )
    return schedule, lr, low, warmup, updates


@given(falling(), st.data())
def test_what_falls_is_continuous_and_stays_between_its_ends(
    drawn: tuple[Schedule, float, float, int, int], data: st.DataObject
) -> None:
    rate, lr, low, warmup, updates = drawn
    t = data.draw(st.integers(1, updates))
    assert 0 <= rate(t) <= lr
    assert rate(t) > 0 or t == updates
    if t <= warmup:
        assert rate(t) == pytest.approx(lr * t / warmup, rel=1e-12)
    else:
        assert rate(t) >= low * (1 - 1e-12)
        assert rate(t) <= rate(t - 1) * (1 + 1e-12)
    if warmup < updates:
        assert rate(warmup) == lr
        assert rate(updates) == low
        # No jump: the first step down is no steeper than the steepest of half a cosine.
        assert lr - rate(warmup + 1) <= (lr - low) * math.pi / 2 / (updates - warmup) + lr * 1e-12


# --- counting as others do --------------------------------------------------------------------------------------------


def counted(name: str, counting: str, lr: float = 0.2) -> Schedule:
    return make_schedule(name, d_model=256, warmup=4000, factor=1.0, lr=lr, counting=counting)


PAPER = [2.470529e-07, 4.941059e-07, 7.411588e-07]  # updates 1 to 3 with d_model 256 and warm-up 4000
PEAK = 9.882118e-04


@pytest.mark.parametrize(
    ("counting", "first", "peak", "at"),
    [
        ("paper", PAPER, PEAK, 4000),
        ("espnet", PAPER, PEAK, 4000),
        ("opennmt", PAPER, PEAK, 4000),
        ("allennlp", PAPER, PEAK, 4000),
        ("annotated", [PAPER[0], PAPER[0], PAPER[1]], PEAK, 4001),
        ("tensor2tensor", [0.0, 2 * PAPER[0], 2 * PAPER[1]], 2 * PEAK, 4001),
        ("tensor2tensor_legacy", [10 * 0.2 * rate for rate in PAPER], 10 * 0.2 * PEAK, 4000),
    ],
)
def test_noam_as_toolkits_count_it(counting: str, first: list[float], peak: float, at: int) -> None:
    rate = counted("noam", counting)
    assert [rate(k) for k in (1, 2, 3)] == pytest.approx(first, rel=1e-6)
    assert max(range(1, 8000), key=rate) == at
    assert rate(at) == pytest.approx(peak, rel=1e-6)


@pytest.mark.parametrize("counting", ["fairseq", "transformers"])
def test_the_inverse_square_root_as_toolkits_count_it(counting: str) -> None:
    rate = counted("inverse_sqrt", counting)
    assert [rate(k) for k in (1, 2, 3)] == pytest.approx([0.0, 0.2 / 4000, 0.4 / 4000])
    assert max(range(1, 8000), key=rate) == 4001
    assert (rate(4001), rate(16_001)) == pytest.approx((0.2, 0.1))


@pytest.mark.parametrize("counting", COUNTINGS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_each_counting_is_of_its_schedules_alone(name: str, counting: str) -> None:
    known = {"noam": {"annotated", "tensor2tensor", "tensor2tensor_legacy", "espnet", "opennmt", "allennlp"}}
    known["inverse_sqrt"] = {"fairseq", "transformers"}
    if counting == "paper" or counting in known.get(name, ()):
        make_schedule(name, d_model=4, warmup=4, factor=1.0, lr=1.0, updates=9, counting=counting)(1)
    else:
        with pytest.raises(
            ValueError, match=rf"^counting '{counting}': expected, with schedule '{name}', one of paper"
        ):
            make_schedule(name, d_model=4, warmup=4, factor=1.0, lr=1.0, updates=9, counting=counting)


def test_other_countings_start_at_one_too() -> None:
    with pytest.raises(ValueError, match=r"^k = 0: expected a number ≥ 1"):
        counted("noam", "annotated")(0)

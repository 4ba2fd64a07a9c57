"""The schedules against the values and the properties of Vaswani et al. 2017, equation 3."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.optim.schedules import constant_rate, inverse_sqrt_rate, make_schedule, noam_rate

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
        ("none", [2.0] * 5),
    ],
)
def test_schedules_by_name(name: str, rates: list[float]) -> None:
    schedule = make_schedule(name, d_model=4, warmup=4, factor=0.016, lr=2.0)
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


def test_an_unknown_schedule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'cosine': expected one of noam, inverse_sqrt, constant, none"):
        make_schedule("cosine", d_model=1, warmup=1, factor=1.0, lr=1.0)

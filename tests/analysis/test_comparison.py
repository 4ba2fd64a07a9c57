"""What a comparison computes, against computations made otherwise, and what it refuses to say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stages.analysis import resampling
from stages.analysis.comparison import compare
from stages.analysis.question import Comparison, Question
from stages.errors import StudyError
from tests.analysis.test_false_positives import question_of, runs_of

GONE = math.inf
LN_65 = math.log(65)
NOISE = np.random.default_rng(0).normal(0, 0.02, (4, 10))

# ---------------------------------------------------------------------------------------------- resampling


@given(st.lists(st.integers(-6, 6), min_size=1, max_size=6))
def test_p_counts_the_sign_flips_that_are_as_far_from_0(differences: list[int]) -> None:
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
            for signs in itertools.product([-1, 1], repeat=len(differences))]  # fmt: skip
    expected = sum(one >= abs(sum(differences)) for one in sums) / len(sums)
    tenths = np.array(differences) * 0.1  # ties differ in their last digits
    assert resampling.sign_flip_p(tenths, 100, 0) == expected


def test_p_is_as_scipy_and_the_t_test_have_it() -> None:
    a, b = np.random.default_rng(3).normal(3, 0.1, (2, 12))
    a += 0.06
    found = resampling.sign_flip_p(a - b, 100, 0)
    other = stats.permutation_test((a, b), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf)
    assert found == pytest.approx(other.pvalue, abs=1e-12)
    assert found == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=0.3)


def test_p_of_many_pairs_is_drawn() -> None:
    d = np.random.default_rng(0).normal(0.4, 1, 30)
    found = resampling.sign_flip_p(d, 20_000, 0)
    assert found == pytest.approx(stats.ttest_1samp(d, 0).pvalue, rel=0.2)
    assert found == resampling.sign_flip_p(d, 20_000, 0)
    assert resampling.sign_flip_p(np.ones(30), 99, 0) == 1 / 100  # never 0


def test_holm_by_hand() -> None:
    found = resampling.holm(np.array([0.01, 0.04, 0.03, 0.005]))
    assert found == pytest.approx([0.03, 0.06, 0.06, 0.02])  # 3 · .01, max(.04, 2 · .03), 2 · .03, 4 · .005
    assert resampling.holm(np.array([0.6, 0.7])) == pytest.approx([1, 1])
    assert resampling.holm(np.array([0.02, math.nan])) == pytest.approx([0.04, math.nan], nan_ok=True)


def test_the_interval_is_bca() -> None:
    rng = np.random.default_rng(0)
    d = rng.lognormal(0, 1.2, size=12)
    drawn = rng.choice(d, (200_000, 12)).mean(axis=1)
    left_out = (d.sum() - d) / 11
    u = left_out.mean() - left_out
    a = (u**3).sum() / (6 * (u**2).sum() ** 1.5)
    z0 = stats.norm.ppf((drawn < d.mean()).mean())
    z = z0 + stats.norm.ppf([0.025, 0.975])
    expected = np.quantile(drawn, stats.norm.cdf(z0 + z / (1 - a * z)))
    assert resampling.mean_interval(d, 100_000, 0) == pytest.approx(expected, abs=0.03)
    percentile = np.quantile(drawn, [0.025, 0.975])
    assert abs(expected - percentile).max() > 0.15  # a percentile interval would not pass


def test_intervals_of_few_or_equal_values() -> None:
    assert np.isnan(resampling.mean_interval(np.array([1.0]), 99, 0)).all()
    assert resampling.mean_interval(np.array([0.1 + 0.2, 0.3, 0.3]), 99, 0) == pytest.approx((0.3, 0.3))
    assert math.isnan(resampling.sign_flip_p(np.empty(0), 99, 0))


@pytest.mark.parametrize(("comparisons", "needed"), [(1, 6), (4, 8), (6, 8), (7, 9), (9, 9), (12, 9), (13, 10)])
def test_fewer_seeds_than_needed_could_show_nothing(comparisons: int, needed: int) -> None:
    assert resampling.seeds_needed(comparisons) == needed
    assert resampling.smallest_p(needed, comparisons) <= 0.05 < resampling.smallest_p(needed - 1, comparisons)
    assert resampling.power(needed - 1, 50.0, comparisons) == 0
    assert resampling.power(needed, 50.0, comparisons) == 1
    assert math.isinf(resampling.smallest_effect(needed - 1, comparisons))


def test_the_smallest_p_is_that_of_equal_signs() -> None:
    assert resampling.smallest_p(8, 9) == pytest.approx(0.0703, abs=5e-5)
    assert resampling.sign_flip_p(np.arange(1.0, 9.0), 99, 0) == resampling.smallest_p(8)


@pytest.mark.parametrize(("n", "comparisons"), [(10, 1), (12, 1), (20, 4)])
def test_power_is_about_that_of_the_t_test(n: int, comparisons: int) -> None:
    bound = stats.t.isf(0.025 / comparisons, n - 1)
    for effect in (0.5, 1.0):
        t_test = 1 - stats.nct.cdf(bound, n - 1, effect * math.sqrt(n))
        assert resampling.power(n, effect, comparisons) == pytest.approx(t_test, abs=0.02)


def test_power_where_only_equal_signs_are_enough() -> None:
    assert resampling.power(8, 1.5, 4) == pytest.approx(stats.norm.cdf(1.5) ** 8, abs=0.02)


def test_the_smallest_effect_is_found_in_80_of_100() -> None:
    assert resampling.smallest_effect(10) == pytest.approx(1.0, abs=0.02)
    assert resampling.power(10, resampling.smallest_effect(10, 4), 4) == pytest.approx(0.8, abs=0.01)


# ---------------------------------------------------------------------------------------------- tables


def listed(values: dict[str, Sequence[float]], **more: Any) -> Comparison:
    return compare(runs_of(values), question_of(list(values), **more), resamples=999)


def row(table: pd.DataFrame, variant: str) -> dict[Any, Any]:
    (found,) = table[table["variant"] == variant].to_dict("records")
    return found


def three(n: int = 8) -> dict[str, Sequence[float]]:
    """The second is better by far, the third as good as the first."""
    base = 3 + np.linspace(-0.3, 0.3, n)
    return {"a": base, "b": base - 0.5 + NOISE[0, :n], "c": base + NOISE[1, :n] - NOISE[1, :n].mean() + 0.001}


def test_variants_and_differences() -> None:
    values = three()
    found = listed(values)
    assert list(found.variants["variant"]) == ["a", "b", "c"]
    a = row(found.variants, "a")
    assert (a["n"], a["diverged"], a["missing"], a["reached"]) == (8, 0, 0, 0)
    low, high = stats.t.interval(0.95, 7, loc=np.mean(values["a"]), scale=stats.sem(values["a"]))
    assert [a[name] for name in ("mean", "low", "high", "median")] == pytest.approx([3, low, high, 3])
    assert a["std"] == pytest.approx(np.std(values["a"], ddof=1))
    b, c = (row(found.differences, name) for name in "bc")
    d = np.subtract(values["b"], values["a"])
    assert (b["baseline"], b["n"], b["verdict"], b["reason"]) == ("a", 8, "better", "")
    assert (b["difference"], b["effect"]) == pytest.approx((d.mean(), d.mean() / d.std(ddof=1)))
    assert b["low"] < d.mean() < b["high"] < -0.4
    assert (b["p"], b["p_holm"]) == (2 / 2**8, 4 / 2**8)
    assert (c["verdict"], c["reason"]) == ("not told apart", "")
    assert c["low"] < 0 < c["high"]


def test_differences_are_paired() -> None:
    values = three()  # seeds move values by more than the variants do
    assert row(listed(values).differences, "b")["verdict"] == "better"
    shuffled = values | {"b": np.roll(values["b"], 4)}
    assert row(listed(shuffled).differences, "b")["high"] - row(listed(shuffled).differences, "b")["low"] > 0.2


def test_a_small_p_is_not_enough_where_the_interval_has_0() -> None:
    d = np.array([0.8, -0.7, 0.8, 0.8, 0.6, 0.4, 0.4, 0.6])
    b = row(listed({"a": np.full(8, 3.0), "b": 3 + d}).differences, "b")
    assert b["p_holm"] == 0.046875
    assert b["low"] < 0
    assert b["verdict"] == "not told apart"


def test_where_high_is_better() -> None:
    found = listed(three(), direction="higher", metric="valid.accuracy")
    assert list(found.differences["verdict"]) == ["worse", "not told apart"]
    assert list(found.variants["rank"])[1] == 3
    assert found.sensitivity.empty


def test_the_correction_is_for_all_comparisons_of_the_group() -> None:
    values = three(7)
    more = {f"d{i}": np.asarray(values["a"]) + NOISE[2, :7] * (-1) ** i for i in range(5)}
    assert row(listed(values).differences, "b")["verdict"] == "better"
    b = row(listed(values | more).differences, "b")
    assert (b["p"], b["p_holm"], b["verdict"]) == (2 / 2**7, 14 / 2**7, "not told apart")


def test_the_order_of_the_rows_does_not_matter() -> None:
    runs = runs_of(three() | {"gone": [GONE] * 8})
    asked = question_of(["a", "b", "c", "gone"])
    one, other = (compare(table, asked, resamples=999) for table in (runs, runs.sample(frac=1, random_state=1)))
    for name in ("variants", "differences", "sensitivity", "edges"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name))
    assert one.statements == other.statements


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda values: {name: of[:4] for name, of in values.items()}, "4 seeds, and 5 are needed"),
        (lambda values: {name: of[:1] for name, of in values.items()}, "1 seed, and 5 are needed"),
        (lambda values: values | {"b": [*values["b"][:7], GONE]}, "1 of 8 runs diverged"),
        (lambda values: values | {"a": [GONE, *values["a"][1:]]}, "1 of 8 runs of a diverged"),
        (lambda values: values | {"b": values["b"][:6]}, "2 of 8 runs are missing"),
        (lambda values: values | {"b": [math.nan, *values["b"][1:]]}, "1 of 8 runs are missing"),
        (lambda values: values | {"b": [GONE] * 8}, "8 of 8 runs diverged"),
    ],
)
def test_what_cannot_be_said(spoil: Callable[[Any], Any], reason: str) -> None:
    b = row(listed(spoil(three())).differences, "b")
    assert (b["verdict"], b["reason"]) == ("cannot be said", reason)


def test_values_that_are_missing_are_counted_and_left_out() -> None:
    values = three()
    found = listed({"a": values["a"], "b": [*values["b"][:5], math.nan, GONE], "c": [GONE] * 8})
    assert found.variants[["n", "diverged", "missing"]].to_numpy().tolist() == [[8, 0, 0], [5, 1, 2], [0, 8, 0]]
    b, c = (row(found.differences, name) for name in "bc")
    assert b["difference"] == pytest.approx(np.mean(np.subtract(values["b"][:5], values["a"][:5])))
    assert (b["n"], c["n"]) == (5, 0)
    assert np.isnan([c[name] for name in ("difference", "low", "high", "p", "p_holm", "effect")]).all()


def test_an_infinite_value_is_a_divergence() -> None:
    runs = runs_of(three())
    runs.loc[0, "value"] = math.inf
    runs.loc[8, "diverged_at"] = 5.0  # whatever its value
    found = compare(runs, question_of(["a", "b", "c"]), resamples=99).variants
    assert found[["n", "diverged"]].to_numpy().tolist() == [[7, 1], [7, 1], [8, 0]]
    assert row(found, "b")["median"] == pytest.approx(np.median(three()["b"][1:]))


def test_equal_differences_have_no_spread_and_no_effect() -> None:
    base = three()["a"]
    found = listed({"a": base, "same": base, "more": np.asarray(base) + 0.1}).differences
    same, more = row(found, "same"), row(found, "more")
    assert (same["difference"], same["low"], same["high"], same["p"]) == (0, 0, 0, 1)
    assert (same["verdict"], more["verdict"]) == ("not told apart", "worse")
    assert [more[name] for name in ("low", "high")] == pytest.approx([0.1, 0.1])
    assert np.isnan([same["effect"], more["effect"]]).all()


def test_ranks() -> None:
    found = listed(three() | {"gone": [GONE, *three()["b"][1:]], "gone too": [GONE] * 8, "never ran": [math.nan] * 8})
    ranks = found.variants.set_index("variant")[["rank", "rank_low", "rank_high"]]
    assert ranks.loc["b"].tolist() == [1, 1, 1]
    assert ranks.loc[["a", "c"], "rank"].tolist() == [2, 3]
    assert ranks.loc["a", ["rank_low", "rank_high"]].tolist() == [2, 3]
    assert ranks.loc["gone"].tolist() == ranks.loc["gone too"].tolist() == [4, 4, 5]
    assert ranks.loc["never ran"].isna().all()


def test_the_interval_of_a_rank_holds_it_where_runs_are_missing() -> None:
    found = listed({"a": np.arange(8.0), "c": np.arange(8.0)[:4] + 0.5}).variants  # c misses the seeds that are hard
    assert found[["rank", "rank_low", "rank_high"]].to_numpy().tolist() == [[2, 1, 2], [1, 1, 2]]


def test_equal_means_share_a_rank() -> None:
    low, high = resampling.rank_intervals(np.array([[1.0, 1.0, 2.0], [3.0, 3.0, 4.0]]), 99, 0)
    assert (low.tolist(), high.tolist()) == ([1, 1, 3], [1, 1, 3])


def test_steps_to_the_target_are_medians_of_those_that_reached_it() -> None:
    runs = runs_of(three())
    runs.loc[runs["variant"] == "b", "steps_to_target"] = [10, 30, 20, *[math.nan] * 5]
    runs.loc[runs["variant"] == "b", "seconds_to_target"] = [1, 2, 6, *[math.nan] * 5]
    found = compare(runs, question_of(["a", "b", "c"], target=2.6), resamples=99).variants
    assert found["reached"].tolist() == [0, 3, 0]
    assert row(found, "b")["steps_to_target"] == 20
    assert row(found, "b")["seconds_to_target"] == 2


# ---------------------------------------------------------------------------------------------- grids

RATES = ["0.0003", "0.001", "0.003", "0.01", "0.03"]
MEASURED = {  # seed 1 of a study of warm-up by place of the norms, and the sensitivities computed then
    ("post", "0"): ([2.640, 2.563, 3.393, 3.391, 3.400], 0.515),
    ("post", "100"): ([2.710, 2.540, 2.567, 3.392, 3.397], 0.381),
    ("pre", "0"): ([2.581, 2.427, 2.361, 2.523, 2.818], 0.181),
    ("pre", "100"): ([2.628, 2.464, 2.394, 2.438, 2.559], 0.102),
}


def grid(losses: dict[tuple[str, str], Sequence[float]], seeds: int = 1, **columns: Any) -> pd.DataFrame:
    """Runs of norm by warm-up by rate; an infinite loss is that of a run that diverged."""
    tables = []
    for (norm, warmup), of_rates in losses.items():
        for rate, loss in zip(RATES, of_rates, strict=True):
            table = runs_of({f"norm={norm}, warmup={warmup}, lr={rate}": loss + 0.1 * np.arange(seeds)})
            tables.append(table.assign(norm=norm, warmup=warmup, lr=rate))
    return pd.concat(tables, ignore_index=True).assign(**columns)


def asked_of(runs: pd.DataFrame, **more: Any) -> Question:
    factors = {name: list(dict.fromkeys(runs[name])) for name in ("norm", "warmup", "lr")}
    numbers = {"warmup": {"0": 0.0, "100": 100.0}, "lr": {rate: float(rate) for rate in RATES}}
    asked = question_of([runs["variant"].iloc[0]], factors=factors, numbers=numbers)
    return replace(asked, **more)


@pytest.mark.parametrize("start", [LN_65, math.nan])
def test_sensitivity_as_measured(start: float) -> None:
    runs = grid({key: losses for key, (losses, _) in MEASURED.items()}, start=start)
    found = compare(runs, asked_of(runs), resamples=99).sensitivity
    assert list(found.columns) == ["norm", "warmup", "over", "n", "value", "low", "high", "best", "edge"]
    assert found["value"].tolist() == pytest.approx([value for _, value in MEASURED.values()], abs=0.0011)
    assert found["best"].tolist() == ["0.001", "0.001", "0.003", "0.003"]
    assert not found["edge"].any()


def test_what_diverged_or_got_worse_counts_as_the_loss_at_the_start() -> None:
    runs = grid({("pre", "0"): [2.0, 1.0, 2.0, 5.0, GONE]}, seeds=3, start=3.0)
    (found,) = compare(runs, asked_of(runs), resamples=999).sensitivity.to_dict("records")
    # Seeds add 0, 0.1 and 0.2 to all losses below the start: 11/5 - 1, 11.3/5 - 1.1, 11.6/5 - 1.2.
    assert found["value"] == pytest.approx((1.2 + 1.16 + 1.12) / 3)
    assert (found["n"], found["best"], found["edge"]) == (3, "0.001", False)
    assert 1.119 < found["low"] < found["value"] < found["high"] < 1.201
    failed = runs.assign(value=runs["value"].mask((runs["seed"] == 2) & (runs["lr"] == "0.01")))
    assert compare(failed, asked_of(runs), resamples=99).sensitivity["n"].tolist() == [2]
    assert compare(runs, asked_of(runs, direction="higher"), resamples=99).sensitivity.empty
    unknown = compare(runs.assign(start=math.nan), asked_of(runs), resamples=99).sensitivity
    assert unknown["n"].tolist() == [0]
    assert unknown["value"].isna().all()


def test_a_level_without_a_number_and_a_short_grid_have_no_sensitivity() -> None:
    runs = grid({("pre", "0"): [2.0, 1.0, 2.0, 5.0, 6.0]})
    asked = asked_of(runs)
    two = replace(asked, numbers={"lr": {rate: float(rate) for rate in RATES[:2]}})
    assert compare(runs, two, resamples=99).sensitivity.empty
    three_of_them = replace(asked, numbers={"lr": {rate: float(rate) for rate in RATES[:3]}})
    assert compare(runs, three_of_them, resamples=99).sensitivity["value"].tolist() == pytest.approx([2 / 3])


def test_edges() -> None:
    losses = {("pre", "0"): [1.0, 2.0, 2.0, 3.0, 3.0], ("pre", "100"): [3.0, 2.0, 2.0, 2.0, 1.0],
              ("post", "0"): [3.0, 2.0, 2.0, 2.0, GONE], ("post", "100"): [3.0, 2.0, 1.0, 2.0, 3.0]}  # fmt: skip
    runs = grid(losses, seeds=2)
    found = compare(runs, asked_of(runs), resamples=99)
    assert found.edges.to_numpy().tolist() == [["pre", "0", "lr", "0.0003"], ["pre", "100", "lr", "0.03"]]
    assert list(found.edges.columns) == ["norm", "warmup", "over", "best"]
    assert found.sensitivity["edge"].tolist() == [True, True, False, False]


def test_the_order_of_a_grid_is_that_of_its_numbers() -> None:
    runs = grid({("pre", "0"): [3.0, 1.0, 2.0, 2.0, 2.0]})
    numbers = {"lr": dict(zip(RATES, [3.0, 1.0, 2.0, 4.0, 5.0], strict=True))}
    assert compare(runs, asked_of(runs, numbers=numbers), resamples=99).edges["best"].tolist() == ["0.001"]


def test_of_a_tuned_factor_the_runs_may_have_the_chosen_level_alone() -> None:
    runs = grid({("pre", "0"): [3.0, 2.0, 2.0, 2.0, 1.0], ("pre", "100"): [3.0, 2.0, 2.0, 1.0, 1.5]}, seeds=2)
    chosen = runs[(runs["warmup"] == "0") & (runs["lr"] == "0.03") | (runs["warmup"] == "100") & (runs["lr"] == "0.01")]
    asked = replace(asked_of(chosen), numbers={"lr": {rate: float(rate) for rate in RATES}})
    assert compare(chosen, asked, resamples=99).edges.empty
    tuned = replace(asked, tuned=["lr"], tuning_seeds=[9])
    assert compare(chosen, tuned, resamples=99).edges.to_numpy().tolist() == [["pre", "0", "lr", "0.03"]]
    two = replace(tuned, numbers={"lr": {"0.03": 0.03, "0.01": 0.01}})
    assert compare(chosen, two, resamples=99).edges.empty
    told = replace(two, at_edge=["norm=pre, warmup=100, lr=0.01"])
    assert compare(chosen, told, resamples=99).edges["best"].tolist() == ["0.01"]
    gone = _diverged(chosen, "norm=pre, warmup=0, lr=0.03", 1)  # its level was chosen all the same
    assert compare(gone, tuned, resamples=99).edges["best"].tolist() == ["0.03"]


def test_with_tuning_a_group_has_its_own_baseline_with_the_level_that_was_chosen_for_it() -> None:
    runs = grid({("pre", "0"): [3.0, 2.0, 1.0, 2.0, 2.0], ("pre", "100"): [3.0, 2.0, 2.0, 1.0, 1.5],
                 ("post", "0"): [3.0, 2.0, 1.5, 2.0, 2.0], ("post", "100"): [3.0, 2.0, 3.0, 2.0, 2.5]})  # fmt: skip
    best = {"pre": {"0": "0.003", "100": "0.01"}, "post": {"0": "0.001", "100": "0.003"}}
    chosen = runs[[best[row["norm"]][row["warmup"]] == row["lr"] for row in runs.to_dict("records")]]
    asked = asked_of(chosen, within=["norm"], tuned=["lr"], tuning_seeds=[9])
    assert asked.baseline == "norm=pre, warmup=0, lr=0.003"
    table = compare(chosen, asked, resamples=99).differences
    assert table["baseline"].tolist() == ["norm=pre, warmup=0, lr=0.003", "norm=post, warmup=0, lr=0.001"]
    assert table["difference"].tolist() == pytest.approx([0.0, 1.0])
    asked = asked_of(runs, baseline="norm=pre, warmup=0, lr=0.003", within=["norm"], tuned=["lr"])
    whole = compare(runs, asked, resamples=99).differences
    assert set(whole["baseline"]) == {"norm=pre, warmup=0, lr=0.003", "norm=post, warmup=0, lr=0.003"}


def test_groups_are_compared_within_themselves() -> None:
    losses = {("pre", "0"): [3.0, 2.0, 1.0, 2.0, 3.0], ("post", "0"): [4.0, 3.0, 2.0, 3.0, 4.0]}
    runs = grid(losses, seeds=9)
    found = compare(runs, asked_of(runs, within=["norm"]), resamples=99)
    assert (
        found.differences["baseline"].tolist()
        == ["norm=pre, warmup=0, lr=0.0003"] * 4 + ["norm=post, warmup=0, lr=0.0003"] * 4
    )
    assert found.differences["difference"].tolist() == pytest.approx([-1, -2, -1, 0] * 2)
    assert found.variants["rank"].tolist() == [4, 2, 1, 2, 4] * 2
    assert found.winner == ""
    assert [one.text[:47] for one in found.statements[:2]] == [
        "The winner where norm=pre is norm=pre, warmup=0",
        "The winner where norm=post is norm=post, warmup",
    ]
    whole = compare(runs, asked_of(runs), resamples=99)
    assert len(whole.differences) == 9
    assert whole.variants["rank"].max() == 9


def test_a_group_without_the_baselines_levels_cannot_be_compared() -> None:
    runs = grid({("pre", "0"): [3.0, 2.0, 1.0, 2.0, 3.0], ("post", "0"): [4.0, 3.0, 2.0, 3.0, 4.0]}, seeds=9)
    kept = runs[runs["variant"] != "norm=post, warmup=0, lr=0.0003"]
    found = compare(kept, asked_of(runs, within=["norm"]), resamples=99).differences
    assert found["verdict"].tolist()[4:] == ["cannot be said"] * 4
    assert set(found["reason"][4:]) == {"no variant of its group has the baseline's levels"}


def test_groups_of_one_have_nothing_to_compare() -> None:
    runs = grid({("pre", "0"): [3.0, 2.0, 1.0, 2.0, 3.0]})
    found = compare(runs, asked_of(runs, within=["norm", "warmup", "lr"]), resamples=99)
    assert (len(found.differences), found.winner, len(found.variants)) == (0, "", 5)


# ---------------------------------------------------------------------------------------------- winners


def with_a_winner() -> tuple[pd.DataFrame, Question]:
    """Three optimisers, tuned on seeds 100 and 101 at three rates; sgd is the best, at the middle rate."""
    tables = [
        runs_of({name: 3 + mean + NOISE[i, :10]}).assign(optimizer=name, lr=rate)
        for i, (name, mean, rate) in enumerate([("adam", 0.2, "0.01"), ("sgd", 0.0, "0.01"), ("muon", 0.4, "0.01")])
    ]
    factors = {"optimizer": ["adam", "sgd", "muon"], "lr": ["0.001", "0.01", "0.1"]}
    asked = question_of(
        ["adam"],
        factors=factors,
        numbers={"lr": {"0.001": 0.001, "0.01": 0.01, "0.1": 0.1}},
        tuned=["lr"],
        tuning_seeds=[100, 101],
        trials={"adam": 6, "sgd": 6, "muon": 6},
    )
    return pd.concat(tables, ignore_index=True), asked


def test_a_winner_is_named() -> None:
    runs, asked = with_a_winner()
    found = compare(runs, asked, resamples=999)
    assert found.winner == "sgd"
    assert found.edges.empty


def test_a_winner_is_better_than_every_other_and_not_the_baseline_alone() -> None:
    runs, asked = with_a_winner()
    runs.loc[runs["variant"] == "muon", "value"] = 3 + NOISE[1, ::-1]
    found = compare(runs, asked, resamples=999)
    assert row(found.differences, "sgd")["verdict"] == row(found.differences, "muon")["verdict"] == "better"
    assert found.winner == ""


def _at_edge(name: str) -> Callable[[pd.DataFrame, Question], tuple[pd.DataFrame, Question]]:
    return lambda runs, asked: (runs.assign(lr=runs["lr"].mask(runs["variant"] == name, "0.1")), asked)


def _diverged(runs: pd.DataFrame, name: str, seeds: int) -> pd.DataFrame:
    gone = (runs["variant"] == name) & (runs["seed"] < seeds)
    return runs.assign(value=runs["value"].mask(gone), diverged_at=runs["diverged_at"].mask(gone, 5.0))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_at_edge("sgd"), "edge of its grid"),
        (_at_edge("muon"), "edge of its grid"),  # who was tuned too little may be the better one
        (
            lambda runs, asked: (runs, replace(asked, trials=asked.trials | {"adam": 3})),
            "budgets of tuning are unequal",
        ),
        (lambda runs, asked: (runs, replace(asked, tuning_seeds=[9, 10])), "tuned on the seeds that are reported"),
        (lambda runs, asked: (runs, replace(asked, tuning_seeds=())), "tuned on the seeds that are reported"),
        (lambda runs, asked: (runs[runs["seed"] < 4], asked), "4 seeds, and 5 are needed"),
        (lambda runs, asked: (runs[runs["seed"] < 6], asked), "not told apart"),
        (lambda runs, asked: (_diverged(runs, "sgd", 1), asked), "1 of 10 runs of adam|1 of 10 runs diverged"),
        (lambda runs, asked: (_diverged(runs, "muon", 1), asked), "1 of 10 runs diverged"),
        (lambda runs, asked: (_diverged(runs, "muon", 10), asked), "10 of 10 runs diverged"),
        (lambda runs, asked: (runs[(runs["variant"] != "sgd") | (runs["seed"] > 0)], asked), "are missing"),
    ],
)
def test_no_winner_against_the_rules(spoil: Callable[[pd.DataFrame, Question], Any], why: str) -> None:
    found = compare(*spoil(*with_a_winner()), resamples=999)
    assert found.winner == ""
    assert found.statements[0].kind == "cannot be said"
    assert found.statements[0].text.startswith("No winner is named: ")
    assert any(one in found.statements[0].text for one in why.split("|"))
    assert not [one.text for one in found.statements if "winner" in one.text.lower()][1:]


def test_a_grid_has_no_winner_at_its_edge() -> None:
    losses = {("pre", "0"): [3.0, 2.5, 2.0, 1.5, 1.0]}
    runs = grid(losses, seeds=10)
    asked = asked_of(runs)
    found = compare(runs, asked, resamples=999)
    assert (found.winner, found.edges["best"].tolist()) == ("", ["0.03"])
    inside = runs.assign(value=runs["value"].where(runs["lr"] != "0.03", 4.0))
    assert compare(inside, asked, resamples=999).winner == "norm=pre, warmup=0, lr=0.01"
    both = grid(losses | {("pre", "100"): [4.0, 3.5, 3.0, 2.5, 2.0]}, seeds=10)
    fixed = compare(both, replace(asked_of(both), within=["lr"]), resamples=999)  # nothing was chosen over the rate
    assert fixed.statements[4].text.startswith("The winner where lr=0.03 is norm=pre, warmup=0, lr=0.03")


# ---------------------------------------------------------------------------------------------- errors


def test_what_cannot_be_compared_is_told() -> None:
    runs, asked = runs_of(three()), question_of(["a", "b", "c"])
    for table, question, message in [
        (runs.iloc[:0], asked, "made up: there are no runs to compare"),
        (runs, replace(asked, baseline="bb"), r"made up: baseline: no run of 'bb' \(did you mean 'b'\?\)"),
        (runs, replace(asked, within=["varient"]), r"within: varient: no such factor \(did you mean 'variant'\?\)"),
        (
            runs,
            replace(asked, factors={"variant": ["a", "b", "cc"]}),
            r"variant: c: expected a or b or cc \(did you mean 'cc'\?\)",
        ),
        (pd.concat([runs, runs.iloc[3:4]]), asked, "variant a: two runs with seed 3: expected one"),
    ]:
        with pytest.raises(StudyError, match=message):
            compare(table, question)

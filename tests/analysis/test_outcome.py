"""What is said of a run or of its replicas."""

from __future__ import annotations

from typing import Any

import pytest

from stages.analysis.outcome import (
    HUGE,
    behind_counting,
    diverged,
    headline,
    last_measured,
    measure,
    number,
    percent,
    perplexity,
    splits,
)


def replica(seed: int, loss: float | None, **more: Any) -> dict[str, Any]:
    """An entry of reports/replicas.json."""
    measures = {
        "loss": loss,
        "perplexity": None if loss is None else 2 * loss,
        "accuracy": 0.25 * (seed % 4),
        "tokens": 48,
        "sentences": 9,
        "unknown_share": 0.0,
        "floor": 0.5,
        "excess": None if loss is None else loss - 0.5,
    }
    return {"seed": seed, **more, "train": measures}


LAST = {"step": 90, "epoch": 10, "split": "train", "loss": 2.34567, "perplexity": 10.4, "accuracy": 0.1}


def test_of_one_run_a_measure_is_its_value() -> None:
    assert measure([replica(1, 2.0)], "train", "loss") == (2.0, None, None, None, 1, 1)
    assert measure([replica(1, None)], "train", "loss") == (None, None, None, None, 0, 1)


def test_of_one_run_the_interval_is_over_sentences_and_of_replicas_over_seeds() -> None:
    one, two = replica(1, 2.0), replica(2, 4.0)
    for entry in (one, two):
        entry["train"]["interval"] = {"loss_low": 1.5, "loss_high": 2.5}
    assert measure([one], "train", "loss") == (2.0, None, 1.5, 2.5, 1, 1)
    assert measure([one], "train", "accuracy") == (0.25, None, None, None, 1, 1)
    assert measure([one, two], "train", "loss")[2:4] == pytest.approx((3 - 12.706, 3 + 12.706), abs=1e-3)


@pytest.mark.parametrize(("gain", "behind"), [(0.2, False), (0.0, False), (None, False), (-0.2, True)])
def test_who_loses_to_counting_is_told_by_how_much(gain: float | None, behind: bool) -> None:
    one = replica(1, 2.0)
    one["train"] |= {"gain": gain, "baseline": {"trigram": 1.8}, "interval": {"gain_low": -0.3, "gain_high": -0.1}}
    assert behind_counting([one]) == (("train", 1.8, 0.2, 0.1, 0.3) if behind else None)
    better = one["train"] | {"gain": 0.1}
    assert behind_counting([one | {"valid": better}]) is None


def test_of_replicas_the_mean_decides() -> None:
    entries = [replica(seed, 2.0) for seed in (1, 2)]
    for entry, gain in zip(entries, (-0.5, 0.1), strict=True):
        entry["train"] |= {"gain": gain, "baseline": {"trigram": 1.8}}
    behind = behind_counting(entries)
    assert behind is not None
    assert (behind.nats, behind.low, behind.high) == pytest.approx((0.2, 0.2 - 3.812, 0.2 + 3.812), abs=1e-3)


def test_of_replicas_it_is_the_mean_with_its_interval() -> None:
    found = measure([replica(i, loss) for i, loss in enumerate((1.0, 2.0, 3.0))], "train", "loss")
    assert found == pytest.approx((2.0, 1.0, 2 - 2.4841, 2 + 2.4841, 3, 3), abs=1e-4)


def test_what_is_not_finite_has_no_part_and_is_counted() -> None:
    some = [replica(1, 1.0), replica(2, None), replica(3, 3.0)]
    loss, accuracy = measure(some, "train", "loss"), measure(some, "train", "accuracy")
    assert (loss.value, loss.runs, loss.of) == (2.0, 2, 3)
    assert (accuracy.value, accuracy.runs) == (0.5, 2)  # not that of numbers that are none
    alone = measure(some[:2], "train", "loss")
    assert (alone.value, alone.std, alone.low, alone.runs, alone.of) == (1.0, None, None, 1, 2)
    assert measure([replica(1, None), replica(2, None)], "train", "loss").value is None
    del some[0]["train"]["excess"], some[2]["train"]["excess"]
    assert measure(some, "train", "excess").value is None


def test_held_out_text_counts_most() -> None:
    one = replica(0, 1.0)
    assert (splits([one]), headline([one])) == (["train"], "train")
    assert headline([one | {"test": one["train"]}]) == "test"
    both = one | {"test": one["train"], "valid": one["train"]}
    assert (splits([both]), headline([both])) == (["train", "valid", "test"], "valid")


def test_those_that_diverged_and_what_they_had_last() -> None:
    some = [replica(0, 1.0), replica(1, None, diverged_at=99, last_finite=LAST)]
    assert diverged(some) == [some[1]]
    assert last_measured(some[1]) == "2.3457 on the training text after update 90"
    assert last_measured(replica(1, None, diverged_at=1, last_finite=None)) == ""
    assert last_measured(some[0]) == ""


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (number(None), "–"),
        (number(True), "yes"),
        (number(2700), "2\u202f700"),
        (number(1.5912345, 4), "1.5912"),
        (number(1130392427665.7778, 4), "1.130e+12"),
        (number(-576042170218.1, 4), "-5.760e+11"),
        (number(1e-9), "1e-09"),
        (number("noam"), "noam"),
        (perplexity(None), HUGE),
        (perplexity(4.9097), "4.91"),
        (perplexity(4959.4), "4959"),
        (perplexity(15380.2), "15\u202f380"),
        (perplexity(5262877.4), "5.263e+06"),
        (percent(0.625), "62.5 %"),
        (percent(None), "–"),
    ],
)
def test_numbers_read_well(shown: str, expected: str) -> None:
    assert shown == expected

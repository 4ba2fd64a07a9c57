"""The lines of `noam summary`."""

from __future__ import annotations

from typing import Any

from stages.analysis.summary import summary
from tests.analysis.test_outcome import LAST, replica

METRICS = {"measured_on": "training text"}


def prompts(probability: float | None = 0.7412) -> list[dict[str, Any]]:
    return [
        {"tokens": ["[bos]", "un"], "next": [{"word": "gato", "probability": 0.5}]},
        {"tokens": ["[bos]"], "next": [{"word": "el", "probability": probability}]},
    ]


def test_one_run() -> None:
    assert list(summary(METRICS, [replica(0, 1.65217)], prompts())) == [
        "measured on  training text",
        "train loss   1.6522 nats/token (perplexity 3.304, 1.1522 above the floor of this text)",
        "after [bos]  el (0.74)",
    ]


def test_one_run_with_all_its_measures() -> None:
    one = replica(0, 1.65217)
    one["train"] |= {
        "bits_per_character": 0.5123,
        "gain": -0.25,
        "baseline": {"trigram": 1.4},
        "interval": {"loss_low": 1.5, "loss_high": 1.8},
    }
    assert list(summary(METRICS, [one], prompts()))[1:3] == [
        "train loss   1.6522 nats/token (95% interval 1.5000 to 1.8000, perplexity 3.304, 0.5123 bits/character, "
        "1.1522 above the floor of this text)",
        "counting     is better: 3-grams have 1.4000 nats/token on the training text, 0.2500 less than the model",
    ]
    one["train"]["gain"] = 0.25
    assert not [line for line in summary(METRICS, [one], prompts()) if line.startswith("counting")]


def test_a_corpus_of_the_grammar() -> None:
    truth = {"loss": 1.7, "excess": 0.07121, "agreement_number": 0.966, "agreement_gender": None}
    lines = list(summary(METRICS, [replica(0, 1.5, truth=truth)], prompts()))
    assert lines[2] == (
        "grammar      0.0712 nats/token above it, on sentences drawn anew; number agrees in 96.6 %, gender in –"
    )


def test_a_corpus_too_large_for_its_floor_and_held_out_text() -> None:
    one = replica(0, 1.5)
    del one["train"]["excess"]
    lines = list(summary(METRICS, [one | {"valid": replica(0, 2.5)["train"] | {"perplexity": None}}], prompts()))
    assert lines[1] == "train loss   1.5000 nats/token (perplexity 3)"
    assert lines[2].startswith("valid loss   2.5000 nats/token (perplexity > 10³⁰⁰")


def test_several_replicas() -> None:
    several = [replica(7 + i, loss) for i, loss in enumerate((1.652, 1.967, 1.930))]
    assert list(summary(METRICS, several, prompts()))[1:] == [
        "train loss   1.8497 ± 0.1722 nats/token "
        "(mean ± standard deviation of 3 seeds; 95% interval of the mean 1.4219 to 2.2774)",
        "             perplexity 3.699, 1.3497 above the floor of this text",
        "after [bos]  el (0.74) (seed 7)",
    ]


def test_a_run_that_diverged_is_named_with_what_it_had_last() -> None:
    lines = list(summary(METRICS, [replica(0, None, diverged_at=99, last_finite=LAST)], prompts(None)))
    assert lines[1:] == [
        "train loss   not finite",
        "diverged     at update 99, last measured loss 2.3457 on the training text after update 90",
        "after [bos]  –",
    ]
    assert "diverged     at update 1" in summary(METRICS, [replica(0, 9.0, diverged_at=1, last_finite=None)], prompts())


def test_replicas_that_diverged_are_named() -> None:
    gone = {"diverged_at": 99, "last_finite": LAST}
    several = [replica(0, 1.0), replica(1, None, **gone), replica(2, 3.0), replica(3, None)]
    lines = list(summary(METRICS, several, prompts()))
    assert "(mean ± standard deviation of 2 of 4 seeds;" in lines[1]
    assert lines[3] == "diverged     1 of 4: seed 1 at update 99"
    assert "train loss   1.0000 nats/token (1 of 2 seeds)" in summary(METRICS, several[:2], prompts())
    many = [replica(i, None, **gone) for i in range(20)]
    lines = list(summary(METRICS, many, prompts(None)))
    assert lines[1] == "train loss   not finite for any of 20 seeds"
    assert lines[2].endswith("seed 7 at update 99 and 12 more")


def test_no_prompt_is_the_bare_beginning() -> None:
    assert not [line for line in summary(METRICS, [replica(0, 1.0)], prompts()[:1]) if line.startswith("after")]

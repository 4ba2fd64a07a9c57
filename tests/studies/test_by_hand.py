"""Runs that somebody made by hand, sorted into variants."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from stages.errors import StudyError
from stages.params import Params
from stages.studies.by_hand import (
    IGNORED,
    Made,
    as_text,
    chosen,
    factors_of,
    merged,
    name_of,
    parse_keys,
    parse_pairs,
    plain,
    question_by_hand,
)
from stages.studies.collect import NUMBERS, Tables


def made(**changes: Any) -> Made:
    return Made("a", as_text(Params(**changes).model_dump()), "0" * 40)


def test_runs_differ_in_what_counts_and_not_in_seeds_or_pictures() -> None:
    runs = [
        made(warmup=10, seed=1, replicas=5, workers=2, snapshots=3, top_k=7, prompts=["", "el"], checkpoint_every=9),
        made(warmup=40, lr=0.1, seed=2, resamples=100, rate_warmups=[1, 2]),
    ]
    assert factors_of(runs, []) == ["warmup", "lr"]
    assert name_of(runs[1], ["warmup", "lr"]) == "warmup=40, lr=0.1"
    assert {"numerics", "corpus", "grammar_depth", "warmup", "batch_size", "tokenizer"} & IGNORED == set()


def test_what_else_differs_must_be_chosen_or_named() -> None:
    runs = [made(warmup=10, lr=0.1), made(warmup=40, lr=0.1), made(warmup=40, lr=0.2)]
    with pytest.raises(StudyError) as error:
        factors_of(runs, ["warmup"])
    assert str(error.value) == (
        "command line: the runs differ in more than warmup: lr (0.1, 0.2); choose with --where KEY=VALUE, or "
        "add to --group"
    )
    assert factors_of(runs, ["warmup", "lr"]) == ["warmup", "lr"]
    assert factors_of(chosen(runs, {"lr": "1e-1"}), ["warmup"]) == ["warmup"]


@pytest.mark.parametrize("group", [[], ["warmup"]])
def test_seeds_alone_are_no_variants(group: list[str]) -> None:
    with pytest.raises(StudyError, match=r"2 run\(s\) that differ in nothing that matters but their seeds"):
        factors_of([made(seed=1), made(seed=2)], group)


def test_none_that_fits() -> None:
    with pytest.raises(StudyError, match=r"command line: no run with warmup=11, loss=notebook among 2"):
        chosen([made(warmup=10), made(warmup=40)], {"warmup": "11", "loss": "notebook"})


def test_spellings_of_mlflow_and_of_dvc_are_one() -> None:
    stored = {"lr": "0.0010", "warmup": "400.0", "lowercase": "True", "rate_warmups": "[1,2]", "text_field": "007"}
    assert plain(stored) == as_text(
        {"lr": 1e-3, "warmup": 400, "lowercase": True, "rate_warmups": [1, 2], "text_field": "007"}
    )
    assert plain(plain(stored)) == plain(stored)
    everything = Params(eps=1.2345678e-9, prompts=["", "el perro"]).model_dump()
    assert plain(as_text(everything)) == as_text(everything)


def test_pairs_and_keys_of_the_command_line() -> None:
    assert parse_pairs(["warmup=400, lr = 1e-3", "loss=notebook"], "--where") == {
        "warmup": "400",
        "lr": "1e-3",
        "loss": "notebook",
    }
    assert parse_keys(["warmup,lr", " loss"]) == ["warmup", "lr", "loss"]
    for call, message in (
        (lambda: parse_pairs(["warmup"], "--where"), "--where 'warmup': expected KEY=VALUE"),
        (
            lambda: parse_pairs(["wramup=1"], "--baseline"),
            "--baseline wramup: no such parameter (did you mean 'warmup'?)",
        ),
        (lambda: parse_keys(["wramup"]), "--group wramup: no such parameter (did you mean 'warmup'?)"),
    ):
        with pytest.raises(StudyError) as error:
            call()
        assert str(error.value) == f"command line: {message}"


def test_the_question_and_its_baseline() -> None:
    runs = [made(warmup=warmup, loss=loss) for warmup in (400, 40, 4000) for loss in ("notebook", "cross_entropy")]
    question = question_by_hand(runs, ["warmup", "loss"], {}, "train.loss", "lower", 1.5)
    assert question.baseline == "warmup=400, loss=notebook"
    assert question.factors == {"warmup": ["40", "400", "4000"], "loss": ["notebook", "cross_entropy"]}
    assert question.numbers == {"warmup": {"40": 40.0, "400": 400.0, "4000": 4000.0}, "loss": {}}
    wanted = {"warmup": "4e3", "loss": "notebook"}
    found = question_by_hand(runs, ["warmup", "loss"], wanted, "train.loss", "higher", None)
    assert (found.baseline, found.direction) == ("warmup=4000, loss=notebook", "higher")
    for wrong in ({"warmup": "41"}, {"warmup": "40"}, {"d_model": "128"}):
        with pytest.raises(StudyError, match=r"--baseline .*: expected one of warmup=400, loss=notebook; warmup=400"):
            question_by_hand(runs, ["warmup", "loss"], wrong, "train.loss", "lower", None)


def tables(variant: str, seed: int, value: float, steps: list[int]) -> Tables:
    row = {"variant": variant, "seed": seed, **dict.fromkeys(NUMBERS, float("nan")), "value": value}
    return Tables(
        pd.DataFrame([row]),
        pd.DataFrame([{"variant": variant, "seed": seed, "step": step, "loss": value} for step in steps]),
        pd.DataFrame([{"variant": variant, "step": step, "lr": value} for step in steps]),
    )


def test_of_two_runs_with_one_seed_the_later_counts_whole() -> None:
    """The earlier one went further: its end is not the end of the later one's curve."""
    found, left_out = merged([tables("a", 1, 1.0, [0, 5, 10]), tables("a", 2, 2.0, [0]), tables("a", 1, 3.0, [0, 5])])
    assert left_out == 1
    assert found.runs[["seed", "value"]].to_numpy().tolist() == [[2, 2.0], [1, 3.0]]
    curve = found.curves[found.curves["seed"] == 1]
    assert curve[["step", "loss"]].to_numpy().tolist() == [[0, 3.0], [5, 3.0]]
    assert found.rates[["step", "lr"]].to_numpy().tolist() == [[0, 3.0], [5, 3.0]]

"""Which parameters go together, and which have no effect."""

from __future__ import annotations

import sys
from typing import Any, get_args

import pytest

from stages.errors import ParamError
from stages.optim.knobs import EXTRA, OPTIMIZERS, note, unused, unused_keys
from stages.optim.schedules import COUNTINGS, SCHEDULES
from stages.params import Params, parse_params
from tests.conftest import Lab

DEFAULTS = Params().model_dump()


def parse(**changes: Any) -> Params:
    return parse_params(DEFAULTS | changes)


def test_the_tables_have_the_names_of_the_parameters() -> None:
    fields = Params.model_fields
    assert get_args(fields["optimizer"].annotation) == tuple(OPTIMIZERS)
    assert get_args(fields["schedule"].annotation) == SCHEDULES
    assert get_args(fields["counting"].annotation) == tuple(COUNTINGS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer": "adamw", "decay_form": "l2"},
            "decay_form = l2: expected, with optimizer: adamw, usual or decoupled (with L2 it is optimizer: adam)",
        ),
        (
            {"optimizer": "sgd", "decay_form": "decoupled"},
            "decay_form = decoupled: expected, with optimizer: sgd, usual or l2 (torch adds its decay to the gradient)",
        ),
        (
            {"optimizer": "muon", "decay_form": "l2"},
            "decay_form = l2: expected, with optimizer: muon, usual or decoupled (its decay is beside the update)",
        ),
        (
            {"optimizer": "schedulefree", "schedule": "wsd"},
            "schedule = wsd: expected, with optimizer: schedulefree, constant or none "
            "(it averages the weights instead of letting the rate fall)",
        ),
        (
            {"optimizer": "ademamix", "beta1": 0.0},
            "beta1 = 0: expected, with optimizer: ademamix, a number > 0",
        ),
        (
            {"schedule": "inverse_sqrt", "counting": "annotated"},
            "counting = annotated: expected, with schedule: inverse_sqrt, paper, fairseq or transformers "
            "(annotated is how that toolkit counts noam)",
        ),
        (
            {"schedule": "cosine", "counting": "transformers"},
            "counting = transformers: expected, with schedule: cosine, paper "
            "(transformers is how that toolkit counts inverse_sqrt)",
        ),
        ({"schedule": "linear", "min_lr": 0.1}, "min_lr = 0.1: expected at most lr = 0.001"),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_reason(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError) as caught:
        parse(**changes)
    assert str(caught.value) == f"params.yaml: {message}"


@pytest.mark.parametrize("optimizer", [name for name, kind in OPTIMIZERS.items() if kind.extra])
def test_without_the_extra_its_optimisers_are_refused(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, EXTRA, None)  # which is how Python is told that there is no such package
    with pytest.raises(ParamError) as caught:
        parse(optimizer=optimizer, schedule="constant")
    expected = f"params.yaml: optimizer = {optimizer}: needs the extra; pip install 'noam-lab[optimizers]'"
    assert str(caught.value) == expected
    parse(optimizer="muon")


@pytest.mark.parametrize(
    ("key", "value", "used", "dead"),
    [
        ("beta1", 0.5, {"optimizer": "sgd"}, {"optimizer": "adagrad"}),
        ("beta2", 0.5, {"optimizer": "lion"}, {"optimizer": "sgd"}),
        ("eps", 0.5, {"optimizer": "adagrad"}, {"optimizer": "lion"}),
        ("beta2", 0.5, {"optimizer": "muon"}, {"optimizer": "adafactor"}),
        ("decay_form", "decoupled", {"decay": 0.1}, {}),
        ("decay_form", "l2", {"decay": 0.1, "optimizer": "nadam"}, {"decay": 0.1, "optimizer": "sgd"}),
        ("warmup", 7, {"schedule": "wsd"}, {"schedule": "none"}),
        ("lr", 0.5, {"schedule": "none"}, {}),
        ("lr", 0.5, {"counting": "tensor2tensor_legacy"}, {"counting": "tensor2tensor"}),
        ("factor", 0.5, {}, {"schedule": "inverse_sqrt"}),
        ("decay_fraction", 0.5, {"schedule": "wsd"}, {"schedule": "cosine"}),
        ("min_lr", 1e-4, {"schedule": "wsd"}, {"schedule": "constant"}),
        ("counting", "annotated", {}, None),
        ("context", 32, {"batches": "packed"}, {"batches": "bucketed"}),
        ("max_length", 32, {}, {"batches": "packed"}),
        ("grammar_depth", 1, {"corpus": "grammar"}, {}),
        ("grammar_seed", 1, {"corpus": "grammar"}, {}),
        ("encoding", "latin-1", {}, {"corpus": "grammar"}),
        ("split_seed", 1, {"valid_fraction": 0.1}, {}),
        ("split_seed", 1, {"test_fraction": 0.1}, {"test_fraction": 0.1, "unit": "stream"}),
        ("vocab_order", "frequency", {"tokenizer": "char"}, {"tokenizer": "bpe", "max_vocab": 300}),
        ("min_count", 2, {"tokenizer": "bpe", "max_vocab": 300}, {"tokenizer": "byte"}),
        ("workers", 1, {"replicas": 2}, {}),
    ],
)
def test_a_knob_is_dead_where_it_is_not_used(
    key: str, value: Any, used: dict[str, Any], dead: dict[str, Any] | None
) -> None:
    assert key not in unused_keys(parse(**used))
    assert key not in unused(parse(**used, **{key: value}))
    if dead is not None:
        assert key in unused_keys(parse(**dead))
        assert key not in unused(parse(**dead))
        assert key in unused(parse(**dead, **{key: value}))


def test_the_note_names_changed_keys_and_what_makes_them_dead() -> None:
    assert note(Params()) == note(parse(warmup=7, beta2=0.5)) == ""
    assert note(parse(optimizer="sgd", schedule="none", warmup=7, beta2=0.5, lr=0.5, context=9)) == (
        "beta2 = 0.5 has no effect with optimizer: sgd, which has none; "
        "warmup = 7 has no effect with schedule: none, which has no ramp; "
        "context = 9 has no effect with batches: shuffled"
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_key_without_effect_is_a_parameter(optimizer: str, schedule: str) -> None:
    params = Params.model_validate(DEFAULTS | {"optimizer": optimizer, "schedule": schedule})
    dead = unused_keys(params)
    assert dead.keys() < Params.model_fields.keys()
    assert ("lr" in dead) == (schedule == "noam")
    assert ("warmup" in dead) == (schedule == "none")
    assert all(dead.values())


def test_training_says_what_has_no_effect_and_no_more(small_lab: Lab) -> None:
    small_lab.set(optimizer="prodigy", schedule="none", lr=0.5, warmup=7)
    done = [small_lab.command(f"stages.{name}") for name in ("prepare", "vocab", "train")][-1]
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "note" in line] == [
        "train: note: prodigy finds a rate of its own, which lr = 0.5 multiplies; 1 is usual",
        "train: note: warmup = 7 has no effect with schedule: none, which has no ramp",
    ]
    small_lab.set(optimizer="adam", schedule="constant")
    assert "note" not in small_lab.command("stages.train").stdout

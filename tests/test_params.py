"""Parameters: what is taken, what is refused and in which words, and the files that must agree with the classes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import ParamError
from stages.params import (
    STAGE_PARAMS,
    WITHOUT_EFFECT,
    Params,
    TrainParams,
    json_schema,
    load_params,
    parse_params,
    read_params_file,
)
from tests.conftest import ROOT

DEFAULTS = Params().model_dump()
TOGETHER = {"processes": 2, "batch_size": 4}


def parse(**changes: Any) -> Params:
    return parse_params(DEFAULTS | changes)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        *[
            ("warmup", value, "a whole number ≥ 1")
            for value in (0, "abc", "", None, -5, 0.5, 4000.5, True, "0x10", [1], math.inf)
        ],
        ("warmup", 10**400, "a whole number ≥ 1"),
        ("factor", 0, "a number > 0"),
        ("dropout", 1, "a number ≥ 0"),
        ("dropout", math.nan, "a number ≥ 0"),
        ("beta1", "1e400", "a number ≥ 0"),
        ("min_lr", -1e-9, "a number ≥ 0"),
        ("decay_fraction", 0, "a number > 0 and ≤ 1"),
        ("schedule", "step", "noam, inverse_sqrt, constant, cosine, linear, wsd or none"),
        ("decay_form", "L2", "usual, l2 or decoupled"),
        ("seed", -1, "a whole number ≥ 0"),
        ("seed", 2**32, "a whole number ≥ 0 and < "),
        ("batches", "padded", "shuffled, bucketed or packed"),
        ("numerics", "fast", "portable or native"),
        ("threads", 0, "a whole number ≥ 1 and ≤ 256"),
        ("shards", 257, "a whole number ≥ 1 and ≤ 256"),
        ("replicas", 0, "a whole number ≥ 1 and ≤ 1000"),
        ("workers", -1, "a whole number ≥ 0 and ≤ 256"),
        ("accumulate", 0, "a whole number ≥ 1"),
        ("context", 0, "a whole number ≥ 1"),
        ("max_updates", -1, "a whole number ≥ 0"),
        ("eval_tokens", 0, "a whole number ≥ 1"),
        ("checkpoint_every", -1, "a whole number ≥ 0"),
        ("checkpoint_every", None, "a whole number ≥ 0"),
        ("resume", "no", "true or false"),
        ("compile", 1, "true or false"),
        ("processes", 0, "a whole number ≥ 1 and ≤ 4096"),
        ("device", "gpu", "auto, cpu, cuda or mps"),
        ("precision", "fp16", "fp32 or bf16"),
        ("fsdp", 1, "true or false"),
        ("block", "Post", "notebook, post or pre"),
        ("heads", None, "full or split"),
        ("lowercase", "yes", "true or false"),
        ("tied_output", 1, "true or false"),
        ("corpus", "", "a text that is not empty"),
        ("corpus", True, "a text that is not empty"),
        ("corpus", "\ud800", "a text that is not empty"),
        ("prompts", [], "a list with at least one entry, each a text"),
        ("prompts", "el gato", "a list with at least one entry, each a text"),
        ("prompts", [None], "a list with at least one entry, each a text"),
        ("rate_warmups", [4000, 0], "a list with at least one entry, each a whole number ≥ 1"),
    ],
)
def test_a_bad_value_is_refused_in_one_line(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(ParamError) as caught:
        parse(**{key: value})
    message = str(caught.value)
    assert message.startswith(f"params.yaml: {key} = {json.dumps(value, ensure_ascii=False)}: expected {allowed}")
    assert "\n" not in message
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("warmup", "4e3", 4000),
        ("warmup", 4000.0, 4000),
        ("warmup", " 4000 ", 4000),
        ("eps", "1e-08", 1e-8),
        ("factor", 2, 2.0),
        ("clip", "0.5", 0.5),
        ("corpus", 1984, "1984"),
        ("prompts", ["", 7], ["", "7"]),
    ],
)
def test_lossless_spellings_are_taken_for_what_they_are(key: str, value: Any, expected: Any) -> None:
    found = getattr(parse(**{key: value}), key)
    assert found == expected
    assert type(found) is type(expected)


@given(st.integers(1, 2**62))
def test_whole_numbers_stay_exact_in_every_spelling(number: int) -> None:
    assert parse(warmup=str(number)).warmup == number == parse(warmup=number).warmup


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_numbers_survive_being_written_as_text(number: float) -> None:
    assert parse(factor=repr(number)).factor == number


def test_every_problem_has_its_line_and_a_typo_names_the_nearest_key() -> None:
    raw = {key: value for key, value in DEFAULTS.items() if key != "warmup"} | {"warmpu": 10, "layers": 0}
    with pytest.raises(ParamError) as caught:
        parse_params(raw)
    assert str(caught.value).splitlines() == [
        "params.yaml: layers = 0: expected a whole number ≥ 1 (number of blocks)",
        "params.yaml: warmpu: unknown key (did you mean 'warmup'?)",
        "params.yaml: warmup: missing; add `warmup: 40000` for the default",
    ]


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"d_model": 15}, "d_model", "expected an even number"),
        ({"d_model": 128, "n_heads": 5, "heads": "split"}, "n_heads", "a divisor of d_model = 128"),
        ({"valid_fraction": 0.5, "test_fraction": 0.5}, "valid_fraction", "less than 1 together with test_fraction"),
        ({"compile": True, "numerics": "native"}, "compile", "= true: expected false unless batches: packed"),
        (
            {"compile": True, "numerics": "native", "batches": "bucketed"},
            "compile",
            "= true: expected false unless batches: packed",
        ),
        ({"compile": True, "batches": "packed"}, "compile", "= true: expected false unless numerics: native"),
        ({"shards": 2}, "shards", "= 2: expected at most batch_size = 1"),
        ({"shards": 9, "batch_size": 8}, "shards", "= 9: expected at most batch_size = 8"),
        ({"processes": 2}, "processes", "= 2: expected at most batch_size = 1"),
        (TOGETHER | {"replicas": 2}, "replicas", "= 2: expected, with processes = 2, 1"),
        (TOGETHER | {"shards": 2}, "shards", "= 2: expected, with processes = 2, 1"),
        (
            TOGETHER | {"compile": True, "numerics": "native", "batches": "packed"},
            "compile",
            "= true: expected, with processes = 2, false",
        ),
        (TOGETHER | {"device": "mps"}, "device", "= mps: expected, with processes = 2, cpu or cuda"),
        ({"fsdp": True}, "fsdp", "= true: expected false unless processes > 1"),
        (TOGETHER | {"fsdp": True, "optimizer": "muon"}, "optimizer", "= muon: expected, with fsdp: true, adam, adamw"),
        ({"device": "cuda", "shards": 2, "batch_size": 2}, "shards", "= 2: expected 1 unless device: cpu"),
        (
            {"device": "auto", "compile": True, "numerics": "native", "batches": "packed"},
            "compile",
            "= true: expected false unless device: cpu",
        ),
        ({"precision": "bf16"}, "precision", "= bf16: expected fp32 unless numerics: native"),
        (
            {"precision": "bf16", "compile": True, "numerics": "native", "batches": "packed"},
            "compile",
            "= true: expected false with precision: bf16",
        ),
        ({"seed": 2**32 - 1, "replicas": 2}, "replicas", "= 2: expected seeds below 2\\^32"),
        ({"optimizer": "schedulefree"}, "schedule", "= noam: expected, with optimizer: schedulefree, constant or none"),
        ({"optimizer": "sgd", "decay_form": "decoupled"}, "decay_form", "expected, with optimizer: sgd, usual or l2"),
    ],
)
def test_values_that_are_impossible_together_are_refused(changes: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ParamError, match=words) as caught:
        parse(**changes)
    assert caught.value.key == key


@pytest.mark.parametrize(
    "changes",
    [
        {"compile": True, "numerics": "native", "batches": "packed"},
        {"shards": 8, "batch_size": 8},
        {"processes": 8, "batch_size": 8, "device": "auto", "precision": "bf16", "numerics": "native"},
        {"processes": 2, "batch_size": 3, "fsdp": True, "optimizer": "adamw"},
        {"shards": 2, "batch_size": 3, "threads": 16},
        {"seed": 2**32 - 2, "replicas": 2},
        {"replicas": 1000, "workers": 256},
        {"context": 2, "batches": "shuffled"},
        {"optimizer": "muon", "schedule": "wsd", "min_lr": 0.001, "decay": 0.1, "decay_form": "decoupled"},
        {"optimizer": "schedulefree", "schedule": "none"},
        {"counting": "tensor2tensor_legacy", "min_lr": 1.0},
    ],
)
def test_values_that_go_together_are_taken(changes: dict[str, Any]) -> None:
    assert parse(**changes).model_dump() == DEFAULTS | changes


def test_what_has_no_effect_on_a_result_is_a_parameter_of_training() -> None:
    """And no other key may change without a run starting anew."""
    assert sorted(WITHOUT_EFFECT) == ["checkpoint_every", "replicas", "resume", "threads", "workers"]
    assert TrainParams.model_fields.keys() > WITHOUT_EFFECT


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: 1\nb: 2\na: 3\n", "params.yaml: a: written twice, the second time in line 3"),
        (b"a: 1\nb: [1, 2\nc: 3\n", "line 3: not YAML"),
        (b"? [a, b]\n: 1\n", "line 1: not YAML: found unhashable key"),
        (b"a: \x00\n", "U+0000 is not allowed in YAML"),
        (b"a: 2020-13-01\n", "not YAML: month must be in 1..12"),
        (b"- a\n- b\n", "expected one `key: value` a line"),
        (b"", "expected one `key: value` a line"),
        ("corpus: año.txt\n".encode("latin-1"), "byte 9 is not UTF-8"),
    ],
)
def test_a_file_that_is_no_mapping_of_yaml_is_refused_in_one_line(
    content: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_bytes(content)
    with pytest.raises(ParamError) as caught:
        read_params_file()
    assert str(caught.value).startswith("params.yaml: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_file_the_message_says_where_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParamError, match=r"^params\.yaml: no such file here; run this in the project's folder$"):
        read_params_file()


def test_a_stage_gets_its_keys_alone_yet_all_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(DEFAULTS | {"warmup": 7}), encoding="utf-8")
    assert load_params(TrainParams, path) == TrainParams(warmup=7)
    path.write_text(yaml.safe_dump(DEFAULTS | {"top_k": 0}), encoding="utf-8")
    with pytest.raises(ParamError, match="top_k = 0"):
        load_params(TrainParams, path)


def test_params_yaml_holds_the_defaults_of_the_classes() -> None:
    assert parse_params(read_params_file(ROOT / "params.yaml")).model_dump() == DEFAULTS


def test_every_key_of_params_yaml_has_a_comment() -> None:
    lines = (ROOT / "params.yaml").read_text(encoding="utf-8").splitlines()
    keys = [line for line in lines if line and line[0] not in "#- "]
    assert [line.split(":")[0] for line in keys] == list(yaml.safe_load("\n".join(lines)))
    assert [line for line in keys if "  # " not in line] == []


def test_every_parameter_is_described() -> None:
    assert [name for name, field in Params.model_fields.items() if not field.description] == []


def test_the_schema_for_editors_is_current() -> None:
    saved = (ROOT / "stages/params.schema.json").read_text(encoding="utf-8")
    assert saved == json.dumps(json_schema(), ensure_ascii=False, indent=1) + "\n", (
        "write it anew: python -m stages.params > stages/params.schema.json"
    )


@pytest.mark.parametrize("stage", STAGE_PARAMS)
def test_dvc_yaml_lists_exactly_the_parameters_that_a_stage_reads(stage: str) -> None:
    listed = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"][stage]["params"]
    everything = STAGE_PARAMS[stage] is Params
    assert listed == ([{"params.yaml": None}] if everything else sorted(STAGE_PARAMS[stage].model_fields))

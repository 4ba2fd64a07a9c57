"""Study files: what is allowed in them, and what is said of the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.errors import StudyError
from stages.studies import spec
from stages.studies.plan import make_plan
from stages.studies.spec import label_of, load_study
from tests.conftest import ROOT
from tests.studies.small import plan, write

EXPECTED: dict[str, Any] = {"says": "it is so", "of": {"warmup": 10, "loss": "cross_entropy"}, "at_least": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sedes": "1-2"}, "sedes: unknown key (did you mean 'seeds'?)"),
        ({"seeds": None}, "seeds: missing (seeds of the runs that are reported)"),
        ({"name": "My study"}, 'name = "My study": expected small letters, digits and hyphens'),
        ({"question": ""}, 'question = "": expected some text'),
        ({"direction": "up"}, "direction = \"up\": expected 'lower' or 'higher'"),
        ({"metric": "loss"}, 'metric = "loss": expected such as valid.loss, as reports/replicas.json has it'),
        ({"target": "low"}, 'target = "low": expected a number'),
        ({"target": float("nan")}, "target = NaN: expected a number"),
        ({"base": 3}, "base = 3: expected KEY: VALUE"),
        ({"factors": ["warmup"]}, 'factors = ["warmup"]: expected KEY: VALUE'),
        ({"factors": {"warmup": 3}}, "factors.warmup = 3: expected a list of values, or labels, each with its values"),
        ({"factors": {"warmup": [10, 10]}}, "factors.warmup = [10, 10]: 10 is there twice"),
        ({"factors": {"lr": [0.001, "1e-3"]}}, 'factors.lr = [0.001, "1e-3"]: 0.001 is there twice'),
        (
            {"factors": {"warmup": [[1]]}},
            "factors.warmup = [[1]]: [1] is no level: expected a number, a text, true or false",
        ),
        (
            {"factors": {"ramp": {None: {}}}},
            'factors.ramp = {"null": {}}: null is no level: expected a number, a text, true or false',
        ),
        (
            {"factors": {"ramp": {10: 3}}},
            'factors.ramp = {"10": 3}: expected the values of 10 as KEY: VALUE, not 3',
        ),
        ({"factors": {}}, "expected either factors (a grid) or variants (a list)"),
        ({"variants": {"a": {}}}, "expected either factors (a grid) or variants (a list)"),
        ({"baseline": [1]}, "baseline = [1]: expected a level for each factor, or the name of a variant of a list"),
        ({"leave_out": [{"warmpu": 10}]}, "leave_out.0.warmpu: no such factor (did you mean 'warmup'?)"),
        ({"leave_out": [{"warmup": 11}]}, "leave_out.0.warmup = 11: expected 10 or 40"),
        ({"leave_out": [{}]}, "leave_out.0: expected a level of at least one factor"),
        ({"optional": {"los": "notebook"}}, "optional.los: no such factor (did you mean 'loss'?)"),
        ({"tuning": {"ovr": ["lr"], "seeds": "0-1"}}, "tuning.ovr: unknown key (did you mean 'over'?)"),
        ({"tuning": {"over": [], "seeds": "0-1"}}, "tuning.over = []: expected at least one entry"),
        (
            {"expectations": [EXPECTED | {"at_lest": 1}]},
            "expectations.0.at_lest: unknown key (did you mean 'at_least'?)",
        ),
        (
            {"expectations": [EXPECTED, EXPECTED | {"absolute": "often"}]},
            'expectations.1.absolute = "often": expected true or false',
        ),
        (
            {"expectations": [EXPECTED | {"measure": "mode"}]},
            "expectations.0.measure = \"mode\": expected 'mean', 'median', 'lowest', 'highest', 'sensitivity' or "
            "'diverged'",
        ),
        ({"smoke": {"bse": {}}}, "smoke.bse: unknown key (did you mean 'base'?)"),
        (
            {"smoke": {"expectations": [{**EXPECTED, "belwo": 1}]}},
            "smoke.expectations.0.belwo: unknown key (did you mean 'below'?)",
        ),
        ({"smoke": {"keep": {"wramup": [10]}}}, "smoke.keep.wramup: no such factor (did you mean 'warmup'?)"),
        ({"smoke": {"keep": {"warmup": [11]}}}, "smoke.keep.warmup = 11: expected 10 or 40"),
        ({"smoke": {"keep": {"warmup": []}}}, "smoke.keep.warmup = nothing: expected 10 or 40"),
        ({}, "smoke: it has no small size"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(StudyError) as error:
        load_study(path, smoke=True)
    found = str(error.value).removeprefix(f"{path}: ")
    assert message in found.split("; ")
    assert "\n" not in found


def test_what_is_no_file_of_keys_is_refused(tmp_path: Path) -> None:
    for content, words in (("- a\n", "expected one `key: value` a line"), ("a: [", "not YAML"), ("a: 1\na: 2\n", "a")):
        (tmp_path / "x.yaml").write_text(content, encoding="utf-8")
        with pytest.raises(StudyError, match=rf"x\.yaml: .*{words}"):
            load_study(tmp_path / "x.yaml")
    with pytest.raises(StudyError, match=r"y\.yaml: no such file"):
        load_study(tmp_path / "y.yaml")


@pytest.mark.parametrize(
    ("written", "seeds"),
    [
        ("10-12", (10, 11, 12)),
        (" 10 – 12 ", (10, 11, 12)),
        (7, (7,)),
        ("7", (7,)),
        ([3, 4], (3, 4)),
        ("4294967294-4294967295", (2**32 - 2, 2**32 - 1)),
    ],
)
def test_seeds(tmp_path: Path, written: Any, seeds: tuple[int, ...]) -> None:
    assert load_study(write(tmp_path, seeds=written)).seeds == seeds


@pytest.mark.parametrize(
    "written", ["3-1", "1,2", [1, 3], [2, 1], [], True, 1.5, -1, [True, 2], "0-4294967296", "0-1000", 2**32, "-3-1"]
)
def test_seeds_that_are_none(tmp_path: Path, written: Any) -> None:
    with pytest.raises(StudyError, match=r"seeds = .*: expected .*such as 10-19"):
        load_study(write(tmp_path, seeds=written))


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (True, "true"),
        (400, "400"),
        (400.0, "400"),
        ("4e2", "400"),
        (0.001, "0.001"),
        ("1e-3", "0.001"),
        (3e-05, "3e-05"),
        (0.123456789, "0.123456789"),
        (1e6, "1000000"),
        ("007", "007"),
        ("pre", "pre"),
        ("post, 2 layers", "post, 2 layers"),
        ("1_0", "1_0"),
    ],
)
def test_a_level_has_one_label_however_it_is_spelled(value: Any, label: str) -> None:
    assert label_of(value) == label
    assert label_of(label) == label


def test_numbers_that_are_nearly_the_same_are_two_levels(tmp_path: Path) -> None:
    base = {"schedule": "constant"}
    found = plan(tmp_path, base=base, factors={"lr": [0.001, 0.0010000001]}, baseline={"lr": 0.001})
    assert [one.params.lr for one in found.variants] == [0.001, 0.0010000001]


def test_both_ways_to_write_levels_mean_the_same(tmp_path: Path) -> None:
    short = plan(tmp_path)
    ramps = {10: {"warmup": 10}, 40: {"warmup": 40}}  # YAML reads these labels as numbers
    long = plan(tmp_path, factors={"warmup": ramps, "loss": ["cross_entropy", "notebook"]})
    assert short.variants == long.variants
    assert short.factors == long.factors == {"warmup": ["10", "40"], "loss": ["cross_entropy", "notebook"]}


def test_a_list_of_variants_may_have_numbers_for_names(tmp_path: Path) -> None:
    found = plan(tmp_path, factors=None, variants={10: {"warmup": 10}, "slow": {"warmup": 40}}, baseline=10)
    assert [one.name for one in found.variants] == ["10", "slow"]
    assert found.variant(found.study.baseline).params.warmup == 10


def test_the_small_size(tmp_path: Path) -> None:
    smoke = {"base": {"epochs": 5}, "seeds": 0, "keep": {"warmup": [40, 10.0], "loss": ["notebook"]}}
    changes = {"base": {"epochs": 9, "d_model": 16}, "expectations": [EXPECTED], "baseline": {"warmup": 10}}
    small = plan(tmp_path, small=True, **changes | {"smoke": smoke})
    assert (small.study.name, small.study.seeds, small.study.expectations) == ("small-smoke", (0,), [])
    assert small.factors == {"warmup": ["40", "10"], "loss": ["notebook"]}
    assert {(one.params.epochs, one.params.d_model) for one in small.variants} == {(5, 16)}


def test_the_small_size_of_a_list(tmp_path: Path) -> None:
    variants = {name: {"warmup": value} for name, value in {"a": 1, "b": 2, "c": 3}.items()}
    changes = {"factors": None, "variants": variants, "baseline": "a", "smoke": {"keep": {"variant": ["a", "c"]}}}
    assert [one.name for one in plan(tmp_path, small=True, **changes).variants] == ["a", "c"]
    assert len(plan(tmp_path, **changes).variants) == 3


# --- what is shipped --------------------------------------------------------------------------------------------------


def test_the_schema_that_editors_use_is_that_of_the_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stages.studies.spec"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert Path(spec.__file__).with_name("study.schema.json").read_text(encoding="utf-8") == done.stdout
    schema = json.loads(done.stdout)
    assert schema["properties"].keys() == spec.Study.model_fields.keys()
    assert {kind for one in schema["properties"]["baseline"]["anyOf"] for kind in [one["type"]]} == {"object", "string"}


@pytest.mark.parametrize("path", sorted((ROOT / "data/studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_study_makes_a_plan_at_both_sizes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    full, small = (make_plan(load_study(path, smoke=smoke), path) for smoke in (False, True))
    assert full.study.name == path.stem
    assert len(full.study.seeds) >= 5
    assert 1 < len(small.variants) <= len(full.variants)
    assert len(small.study.seeds) < len(full.study.seeds)
    assert full.study.expectations
    assert small.study.expectations
    assert full.notes == small.notes == []


def test_a_shipped_study_names_the_schema_and_keeps_to_its_keys() -> None:
    allowed = json.loads((ROOT / "stages/studies/study.schema.json").read_text(encoding="utf-8"))["properties"]
    for path in (ROOT / "data/studies").glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# yaml-language-server: $schema=../../stages/studies/study.schema.json\n")
        assert yaml.safe_load(text).keys() <= allowed.keys()

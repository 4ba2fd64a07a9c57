"""A study's variants: which there are, how they are called, and what is refused before anything runs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest

from stages.analysis.measures import MEASURES
from stages.errors import StudyError
from stages.evaluate import _AVERAGED
from stages.params import Params
from stages.studies import plan as planning
from stages.studies.plan import experiment_name, question_of
from stages.studies.spec import Expected, load_study
from tests.conftest import ROOT
from tests.studies.small import plan

HELD_OUT = {"corpus": "grammar", "valid_fraction": 0.1}


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def names(found: planning.Plan) -> list[str]:
    return [one.name for one in found.variants]


def refusal(folder: Path, **changes: Any) -> str:
    with pytest.raises(StudyError) as error:
        plan(folder, **changes)
    return str(error.value).removeprefix(f"{folder / 'small.yaml'}: ")


def test_the_grid_has_every_combination_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = plan(tmp_path, base={"epochs": 5})
    assert names(found) == [
        "warmup=10, loss=cross_entropy",
        "warmup=10, loss=notebook",
        "warmup=40, loss=cross_entropy",
        "warmup=40, loss=notebook",
    ]
    assert [(one.params.warmup, one.params.loss) for one in found.variants][1:3] == [
        (10, "notebook"),
        (40, "cross_entropy"),
    ]
    assert found.variants[0].with_seeds((10, 11, 12)) == Params(
        warmup=10, loss="cross_entropy", epochs=5, seed=10, replicas=3
    )


def test_what_is_left_out_is_not_there(tmp_path: Path) -> None:
    left_out = [{"warmup": "1e1", "loss": "notebook"}]
    found = plan(tmp_path, leave_out=left_out)
    assert "warmup=10, loss=notebook" not in names(found)
    assert len(found.variants) == 3
    alone = plan(tmp_path, leave_out=[{"loss": "notebook"}])
    assert alone.factors == {"warmup": ["10", "40"], "loss": ["cross_entropy"]}
    assert refusal(tmp_path, leave_out=[{"warmup": 10}, {"warmup": 40, "loss": "notebook"}], baseline={}).startswith(
        "1 variant(s): expected two or more"
    )


def test_a_text_that_is_not_there_is_left_out_where_the_file_allows_it(tmp_path: Path) -> None:
    texts = {"toy": {}, "own": {"corpus": "data/raw/no such text.txt"}}
    changes: dict[str, Any] = {
        "factors": {"text": texts, "warmup": [10, 40]},
        "baseline": {"text": "toy", "warmup": 10},
    }
    assert refusal(tmp_path, **changes) == (
        "variant text=own, warmup=10: corpus = data/raw/no such text.txt: no such file or folder"
    )
    expected = [{"says": "x", "of": {"text": "own", "warmup": 10}, "at_least": 1}]
    found = plan(tmp_path, **changes, optional={"text": "own"}, expectations=expected)
    assert names(found) == ["text=toy, warmup=10", "text=toy, warmup=40"]
    assert found.left_out[0] == "text=own, warmup=10: its corpus data/raw/no such text.txt is not there"
    assert len(found.left_out) == 2
    # A label that is part of such a reason is no level for that.
    wrong = [{"says": "x", "of": {"text": "corpus", "warmup": 10}, "at_least": 1}]
    assert refusal(tmp_path, **changes, optional={"text": "own"}, expectations=wrong) == (
        "expectations.0.of.text = corpus: expected toy"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": {"epohcs": 3}}, "base.epohcs: unknown parameter (did you mean 'epochs'?)"),
        ({"base": {"seed": 3}}, "base.seed: not here; see `seeds`"),
        ({"base": {"workers": 2}}, "base.workers: not here; see `--workers`"),
        (
            {"factors": {"processes": [1, 2]}, "base": {"batch_size": 2}, "baseline": {"processes": 1}},
            "variant processes=2: processes = 2: expected 1: the runs of a study have one each",
        ),
        (
            {"base": {"epochs": 0}},
            "variant warmup=10, loss=cross_entropy: epochs = 0: expected a whole number ≥ 1 (passes over the training "
            "text)",
        ),
        (
            {"factors": {"wramup": [1, 2]}},
            "factors.wramup: no such parameter (did you mean 'warmup'?); a factor of another name maps each level to "
            "values",
        ),
        (
            {"factors": {"ramp": {"a": {"wramup": 1}, "b": {}}}},
            "factors.ramp.a.wramup: unknown parameter (did you mean 'warmup'?)",
        ),
        ({"factors": {"warmup": []}}, "factors.warmup: expected at least one level"),
        (
            {"factors": {"warmup": [10, 40], "speed": {"slow": {"warmup": 3}, "fast": {"lr": 1}}}},
            "factors.speed.slow: another factor sets warmup as well",
        ),
        (
            {"factors": {"ramp": {"short": {"warmup": 10}, "brief": {"warmup": 10.0}}}},
            "variants ramp=short and ramp=brief have the same parameters; `leave_out` one",
        ),
        ({"baseline": {"warmup": 11}}, "baseline.warmup = 11: expected 10 or 40"),
        ({"baseline": {"warmpu": 10}}, "baseline.warmpu: no such factor (did you mean 'warmup'?)"),
        (
            {"baseline": "slow"},
            "baseline = slow: expected a level of each factor, such as {warmup: 10, loss: cross_entropy}",
        ),
        (
            {"baseline": {"warmup": 10}},
            "baseline = {warmup: 10}: 2 variants (warmup=10, loss=cross_entropy; warmup=10, loss=notebook); expected "
            "one",
        ),
        (
            {"leave_out": [{"warmup": 10, "loss": "cross_entropy"}]},
            "baseline = {warmup: 10, loss: cross_entropy}: no variant; expected one",
        ),
        ({"within": ["los"]}, "within: los: no such factor (did you mean 'loss'?)"),
        ({"metric": "train.lsos"}, "metric = train.lsos: no such measure (did you mean 'train.loss'?)"),
        (
            {"metric": "valid.loss"},
            "metric = valid.loss: variant warmup=10, loss=cross_entropy will not have it: valid_fraction is 0, so that "
            "no text is held out",
        ),
        (
            {"metric": "truth.excess"},
            "metric = truth.excess: variant warmup=10, loss=cross_entropy will not have it: only of corpus: grammar "
            "the truth is known",
        ),
        (
            {"tuning": {"over": ["wramup"], "seeds": "0-1"}},
            "tuning.over: wramup: no such factor (did you mean 'warmup'?)",
        ),
        (
            {"tuning": {"over": ["warmup"], "seeds": "9-10"}, "baseline": {"loss": "notebook"}},
            "tuning.seeds: 10 is among `seeds` too: tuned and reported on the same",
        ),
        (
            {"tuning": {"over": ["warmup", "loss"], "seeds": "0-1"}},
            "tuning.over: warmup, loss: expected to leave a factor that is compared",
        ),
        (
            {"tuning": {"over": ["warmup"], "seeds": "0-1"}},
            "baseline.warmup: not here, since its level is not fixed; the other factors say which",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_first(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert refusal(tmp_path, **changes) == message


ONE = {"warmup": 10, "loss": "notebook"}


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"of": ONE}, ": expected at_least, at_most, above or below"),
        (
            {"of": {"warmup": 10}, "above": 1},
            ".of = {warmup: 10}: 2 variants (warmup=10, loss=cross_entropy; warmup=10, loss=notebook); expected one",
        ),
        (
            {"of": {"warmup": 40, "loss": "notebook"}, "above": 1},
            ".of = {warmup: 40, loss: notebook}: no variant; expected one",
        ),
        ({"of": ONE, "minus": {"wramup": 10}, "above": 1}, ".minus.wramup: no such factor (did you mean 'warmup'?)"),
        (
            {"of": ONE, "minus": ONE, "measure": "diverged", "above": 1},
            ".minus: not with measure: diverged, which counts runs",
        ),
    ],
)
def test_an_expectation_that_nothing_could_be_held_against(
    tmp_path: Path, expected: dict[str, Any], message: str
) -> None:
    left_out = [{"warmup": 40, "loss": "notebook"}]
    good = {"says": "good", "of": ONE, "at_least": 1}
    found = refusal(tmp_path, leave_out=left_out, expectations=[good, {"says": "bad", **expected}])
    assert found == f"expectations.1{message}"


def test_with_tuning_a_selector_leaves_out_what_is_tuned(tmp_path: Path) -> None:
    changes = {"tuning": {"over": ["warmup"], "seeds": "0-1"}, "baseline": {"loss": "notebook"}}
    expected = [{"says": "x", "of": {"loss": "notebook"}, "at_least": 1}]
    found = plan(tmp_path, **changes, expectations=expected)
    assert {key: [one.name for one in group] for key, group in found.groups(["warmup"]).items()} == {
        (loss,): [f"warmup={ramp}, loss={loss}" for ramp in (10, 40)] for loss in ("cross_entropy", "notebook")
    }
    wrong = [{"says": "x", "of": {"loss": "notebook", "warmup": 10}, "at_least": 1}]
    assert refusal(tmp_path, **changes, expectations=wrong).startswith("expectations.0.of.warmup: not here")


def test_a_sensitivity_is_of_all_rates(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "base": {"schedule": "constant"},
        "factors": {"block": ["pre", "post"], "lr": [0.1, 0.01, 0.001]},
        "baseline": {"block": "pre", "lr": 0.1},
    }
    one: dict[str, Any] = {"says": "x", "measure": "sensitivity", "below": 1}
    assert plan(tmp_path, **changes, expectations=[one | {"of": {"block": "pre"}}]).study.expectations[0].minus is None
    assert refusal(tmp_path, **changes, expectations=[one | {"of": {}}]).startswith(
        "expectations.0.of = {}: 6 variants"
    )


# --- knobs without effect ---------------------------------------------------------------------------------------------


def test_a_factor_that_nothing_uses_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, factors={"lr": [0.1, 0.01]}, baseline={"lr": 0.1}) == (
        "factors.lr: its levels would give the same runs: lr has no effect with schedule: noam, whose peak follows "
        "from d_model, warmup and factor"
    )
    none = {"base": {"schedule": "none"}, "factors": {"ramp": {"a": {"warmup": 1}, "b": {}}}, "baseline": {"ramp": "a"}}
    assert "factors.ramp: its levels would give the same runs: warmup has no effect" in refusal(tmp_path, **none)


def test_a_factor_that_some_do_not_use_is_noted(tmp_path: Path) -> None:
    grid = {"schedule": ["none", "constant"], "warmup": [10, 40]}
    found = plan(tmp_path, factors=grid, baseline={"schedule": "constant", "warmup": 10})
    assert found.notes == [
        "warmup makes no difference to schedule=none, warmup=10 and 1 more: warmup has no effect with schedule: none, "
        "which has no ramp; `leave_out` saves these runs"
    ]
    once = plan(
        tmp_path,
        factors=grid,
        baseline={"schedule": "constant", "warmup": 10},
        leave_out=[{"schedule": "none", "warmup": 40}],
    )
    assert once.notes == []
    assert plan(tmp_path).notes == []


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_of_experiments_tell_variants_apart_and_are_good_for_git(tmp_path: Path) -> None:
    awkward = [
        "a b",
        "a-b",
        "a_b",
        "-a b",
        "a..b",
        "a.lock",
        "á",
        "é",
        "x" * 99,
        "x" * 98 + "y",
        "~^:?*[",
        "@{",
        "1.5",
        ".5",
    ]
    levels = {label: {"warmup": i + 1} for i, label in enumerate(awkward)}
    found = plan(tmp_path, factors={"ramp": levels}, baseline={"ramp": "a b"})
    for suffix in ("", "tuning"):
        called = [experiment_name("small", one, suffix) for one in found.variants]
        assert len({name.lower() for name in called}) == len(awkward)
        assert all(len(name) < 110 for name in called)
        for name in called:
            subprocess.run(["git", "check-ref-format", f"refs/exps/aa/bb/{name}"], check=True, timeout=20)
    assert called[12] == "small-ramp-1.5-tuning"


def test_a_plain_name_has_no_digest(tmp_path: Path) -> None:
    assert [experiment_name("small", one) for one in plan(tmp_path).variants][:2] == [
        "small-warmup-10-loss-cross-entropy",
        "small-warmup-10-loss-notebook",
    ]


# --- the question -----------------------------------------------------------------------------------------------------


def test_the_question_for_the_analysis(tmp_path: Path) -> None:
    found = plan(tmp_path, within=["loss"], target=1.5, direction="lower", base=HELD_OUT, metric="valid.loss")
    question = question_of(found, "noam study run small.yaml")
    assert (question.title, question.metric, question.target) == ("small", "valid.loss", 1.5)
    assert question.baseline == "warmup=10, loss=cross_entropy"
    assert question.factors == found.factors
    assert question.within == ["loss"]
    assert question.numbers == {"warmup": {"10": 10.0, "40": 40.0}, "loss": {}}


def test_measures_are_those_of_evaluation() -> None:
    assert planning.MEASURES == MEASURES
    assert {*planning.MEASURES, *planning.TRUTH} == set(_AVERAGED)
    assert "sensitivity" in get_args(Expected.model_fields["measure"].annotation)


def test_the_example_of_the_readme_is_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```yaml\n(name: my-study\n.+?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "data/raw").mkdir(parents=True)
    (tmp_path / "data/raw/mine.txt").write_text("one two\nthree\n", encoding="utf-8")
    (tmp_path / "my-study.yaml").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = planning.make_plan(load_study(Path("my-study.yaml")), Path("my-study.yaml"))
    assert len(found.variants) == 6
    assert found.notes == []


def test_code_of_another_revision_is_a_factor_like_others(tmp_path: Path) -> None:
    found = plan(tmp_path, factors={"code": ["HEAD"], "warmup": [10, 40]}, baseline={"warmup": 10})
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert {(one.code, one.commit) for one in found.variants} == {("HEAD", head)}
    assert "code = nowhere: no such revision of git" in refusal(
        tmp_path, factors={"code": ["HEAD", "nowhere"]}, baseline={"code": "HEAD"}
    )

"""Times without interruptions, and what tuning chooses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from stages.errors import StudyError
from stages.execution import Execution
from stages.studies import done, whole
from stages.studies.collect import _clock
from stages.studies.plan import Plan
from tests.conftest import Lab
from tests.studies.small import plan, runs_of

# --- clock ------------------------------------------------------------------------------------------------------------


def execution(folder: Path, entries: list[dict[str, Any]]) -> Execution:
    found = Execution(folder)
    found.journal_path.write_text("".join(json.dumps(one) + "\n" for one in entries), encoding="utf-8")
    return found


def step(s: int, t: int, name: str = "train/loss") -> dict[str, Any]:
    return {"s": s, "t": t, "m": {name: 1.0}}


def test_seconds_until_each_measurement(tmp_path: Path) -> None:
    entries = [step(0, 1000, "eval/loss"), step(1, 1500), step(2, 2500), step(2, 2600, "eval/loss"), step(3, 9000)]
    assert _clock(execution(tmp_path, entries)) == {0: 0.0, 2: 1.6}


def test_the_time_of_an_interruption_is_nobodys(tmp_path: Path) -> None:
    entries = [
        step(0, 1000, "eval/loss"),
        step(1, 2000),
        {"event": "killed", "t": 2100},
        {"event": "resumed", "t": 900_000},
        step(2, 901_000),  # from where it goes on
        step(3, 902_000, "eval/loss"),
        {"event": "resumed", "t": 5_000_000},  # kill -9 leaves no word before
        step(4, 5_000_500, "eval/loss"),
        step(5, 5_001_000, "eval/loss"),
    ]
    assert _clock(execution(tmp_path, entries)) == {0: 0.0, 3: 2.0, 4: 2.0, 5: 2.5}


# --- tuning -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tuned(tmp_path: Path) -> Plan:
    changes: dict[str, Any] = {"tuning": {"over": ["warmup"], "seeds": "0-1"}, "baseline": {"loss": "notebook"}}
    levels = {"warmup": [1, 2, 3], "loss": ["notebook", "cross_entropy"]}
    return plan(tmp_path, **changes, factors=levels)


def trials(tuned: Plan, losses: dict[int, list[float | None]]) -> pd.DataFrame:
    """These of both losses."""
    values = {
        f"warmup={ramp}, loss={loss}": found for ramp, found in losses.items() for loss in ("notebook", "cross_entropy")
    }
    return runs_of(tuned, values, (0, 1))


@pytest.mark.parametrize(
    ("losses", "ramp"),
    [
        ({1: [3.0, 3.0], 2: [2.0, 2.0], 3: [2.5, 2.5]}, 2),
        ({1: [3.0, 3.0], 2: [2.0, 2.0], 3: [2.0, 2.0]}, 2),  # the first of equals
        ({1: [3.0, 3.0], 2: [0.1, None], 3: [4.0, 4.0]}, 1),  # what diverged once is not the best, however low
        ({1: [None, None], 2: [9.0, None], 3: [None, 8.0]}, 3),  # unless all did
    ],
)
def test_the_best_mean_is_chosen_in_each_group(tuned: Plan, losses: dict[int, list[float | None]], ramp: int) -> None:
    chosen = whole.choose(tuned, trials(tuned, losses))
    assert [one.name for one in chosen] == [f"warmup={ramp}, loss=notebook", f"warmup={ramp}, loss=cross_entropy"]


def test_higher_may_be_better(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"tuning": {"over": ["warmup"], "seeds": "0-1"}, "baseline": {"loss": "notebook"}}
    high = plan(tmp_path, **changes, direction="higher", metric="train.accuracy")
    values: dict[int, list[float | None]] = {10: [0.9, 0.9], 40: [0.2, 0.2]}
    assert [one.params.warmup for one in whole.choose(high, trials(high, values))] == [10, 10]


def test_a_trial_that_is_missing_counts_as_one_that_diverged(tuned: Plan) -> None:
    runs = trials(tuned, {1: [3.0, 3.0], 2: [2.0, 2.0], 3: [2.5, 2.5]})
    runs.loc[(runs["variant"] == "warmup=2, loss=notebook") & (runs["seed"] == 1), "value"] = None
    assert [one.params.warmup for one in whole.choose(tuned, runs)] == [3, 2]


def test_a_group_without_any_value_is_named(tuned: Plan) -> None:
    with pytest.raises(StudyError, match=r"small\.yaml: no trial of notebook has a value: it cannot be tuned"):
        whole.choose(tuned, trials(tuned, {1: [None, None], 2: [None, None], 3: [None, None]}))


# --- what is known ----------------------------------------------------------------------------------------------------


def key(small: Plan, seeds: tuple[int, ...] = (0, 1)) -> str:
    done.inputs.cache_clear()
    return done.key_of(small.variants[0], seeds)


def test_results_are_known_by_parameters_seeds_code_and_text(lab: Lab) -> None:
    small = plan(lab.folder)
    first = key(small)
    assert key(small) == first
    assert key(plan(lab.folder, name="other", question="Another?", within=["loss"])) == first
    assert key(small, (0, 1, 2)) != first
    assert key(small, (1, 2)) != first
    assert key(plan(lab.folder, base={"epochs": 7})) != first
    assert key(plan(lab.folder, base={"checkpoint_every": 7})) == first

    (lab.folder / "stages/doctor.py").write_text("# no stage reads this\n", encoding="utf-8")
    assert key(small) == first
    engine = lab.folder / "stages/training/engine.py"
    code = engine.read_text(encoding="utf-8")
    engine.write_text(code + "# changed\n", encoding="utf-8")
    assert key(small) != first
    engine.write_text(code, encoding="utf-8")
    assert key(small) == first
    lab.corpus("el perro come\n")
    assert key(small) != first


def test_an_edit_meanwhile_is_no_part_of_what_was_run(lab: Lab) -> None:
    small = plan(lab.folder)
    first = key(small)
    (lab.folder / "stages/training/engine.py").write_text("# changed\n", encoding="utf-8")
    assert done.key_of(small.variants[0], (0, 1)) == first


def test_failures_are_told_once_for_all_that_failed_alike(lab: Lab) -> None:
    variant = plan(lab.folder).variants[0]
    assert done.failure(variant, (0, 1)) == {}
    done.record_failure(
        variant, (0, 1), {"seed 1": "killed by SIGKILL", "seed 0": "killed by SIGKILL", "plots": "no disk"}
    )
    found = done.failure(variant, (0, 1))
    assert done.in_words(found) == "seed 0, seed 1: killed by SIGKILL; plots: no disk"
    assert done.failure(variant, (0, 1, 2)) == {}

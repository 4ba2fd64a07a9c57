"""A small study, and the tables that its runs might have given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from stages.studies.plan import Plan, make_plan
from stages.studies.spec import load_study

FACTORS: dict[str, Any] = {"warmup": [10, 40], "loss": ["cross_entropy", "notebook"]}
CONTENT: dict[str, Any] = {
    "name": "small",
    "question": "Does the ramp matter?",
    "factors": FACTORS,
    "seeds": "10-12",
    "baseline": {"warmup": 10, "loss": "cross_entropy"},
    "metric": "train.loss",
}


def write(folder: Path, **changes: Any) -> Path:
    """The study with these changes, in a file; None leaves a key out."""
    content = {key: value for key, value in (CONTENT | changes).items() if value is not None}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


def plan(folder: Path, *, small: bool = False, **changes: Any) -> Plan:
    path = write(folder, **changes)
    return make_plan(load_study(path, smoke=small), path)


def runs_of(plan: Plan, values: dict[str, list[float | None]], seeds: tuple[int, ...] = ()) -> pd.DataFrame:
    """The runs of these variants: a value a seed; None where it diverged at update 7."""
    rows = [
        {
            "variant": one.name,
            "seed": seed,
            **one.levels,
            "value": value,
            "start": 3.0,
            "diverged_at": 7.0 if value is None else None,
            "steps_to_target": None,
            "seconds_to_target": None,
        }
        for one in plan.variants
        if one.name in values
        for seed, value in zip(seeds or plan.study.seeds, values[one.name], strict=True)
    ]
    numbers = ["value", "start", "diverged_at", "steps_to_target", "seconds_to_target"]
    return pd.DataFrame(rows).astype(dict.fromkeys(numbers, float))

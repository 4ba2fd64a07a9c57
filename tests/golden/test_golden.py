"""Losses and rates of short runs, kept beside this file: a refactor changes none of them.

A change that is meant: `GOLDEN=write python -m pytest tests/golden`, and say in the commit why the numbers moved.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stages import files
from tests.conftest import Lab

HERE = Path(__file__).parent
RUNS: dict[str, dict[str, Any]] = {
    "notebook": {},
    "double-softmax": {"loss": "notebook", "warmup": 20},
    "modern": {
        "block": "pre",
        "heads": "split",
        "n_heads": 4,
        "layers": 2,
        "positions": "paper",
        "activation": "gelu",
        "tied_output": True,
        "optimizer": "adamw",
        "decay": 0.1,
        "schedule": "inverse_sqrt",
        "warmup": 5,
        "batch_size": 2,
        "clip": 1.0,
        "valid_fraction": 0.2,
        "vocab_order": "frequency",
    },
}


@pytest.mark.parametrize("name", RUNS)
def test_losses_and_rates_are_what_they_were(lab: Lab, name: str) -> None:
    lab.set(epochs=3, eval_every=1, **RUNS[name])
    lab.run("prepare", "vocab", "train", "evaluate")
    history, validation = lab.read("reports/history.json"), lab.read("reports/validation.json")
    metrics = lab.read("reports/metrics.json")
    found = {
        "loss": [record["loss"] for record in history],
        "lr": [record["lr"] for record in history],
        "grad_norm": [record["grad_norm"] for record in history],
        "validation": [record["loss"] for record in validation],
        "metrics": {split: metrics[split]["loss"] for split in metrics if split != "measured_on"},
    }
    asset = HERE / f"{name}.json"
    if os.environ.get("GOLDEN") == "write":
        files.write_json(asset, found)
    kept = files.read_json(asset)
    assert found["lr"] == pytest.approx(kept["lr"], rel=1e-9)
    for key in ("loss", "grad_norm", "validation", "metrics"):
        assert found[key] == pytest.approx(kept[key], rel=1e-4, abs=1e-4), key

"""Losses and rates of short runs, kept beside this file: a refactor changes none of them.

They are computed by a process of their own, in which nothing was computed before: so they are the portable ones.
A change that is meant: `GOLDEN=write python -m pytest tests/golden`, and say in the commit why the numbers moved.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stages import files, paths
from tests.conftest import ROOT, Lab

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
    "windows": {
        "batches": "packed",
        "context": 8,
        "batch_size": 2,
        "accumulate": 2,
        "block": "post",
        "warmup": 5,
        "factor": 0.05,
    },
    "shards": {
        "batches": "bucketed",
        "batch_size": 4,
        "shards": 3,
        "optimizer": "sgd",
        "schedule": "constant",
        "warmup": 3,
        "lr": 0.0001,
        "max_updates": 8,
    },
}


def run_all(folder: Path) -> None:
    """Run them in folders below this one, and write what they came to into found.json."""
    found = {}
    for name, changes in RUNS.items():
        (folder / name).mkdir()
        os.chdir(folder / name)
        lab = Lab(folder / name)
        lab.set(epochs=3, eval_every=1, **changes)
        lab.run("prepare", "vocab", "train", "evaluate")
        history, validation = lab.read("reports/history.json"), lab.read("reports/validation.json")
        metrics = lab.read("reports/metrics.json")
        found[name] = {
            "loss": [record["loss"] for record in history],
            "lr": [record["lr"] for record in history],
            "grad_norm": [record["grad_norm"] for record in history],
            "validation": [record["loss"] for record in validation],
            "metrics": {split: metrics[split]["loss"] for split in paths.SPLITS if split in metrics},
        }
    files.write_json(folder / "found.json", found)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("golden")
    script = f"from pathlib import Path; from tests.golden.test_golden import run_all; run_all(Path({str(folder)!r}))"
    bare = {name: value for name, value in os.environ.items() if not name.startswith("DVC_")}
    environment = bare | {"PYTHONPATH": str(ROOT), "NOAM_LIVE": "off"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = files.read_json(folder / "found.json")
    return content


@pytest.mark.parametrize("name", RUNS)
def test_losses_and_rates_are_what_they_were(found: dict[str, Any], name: str) -> None:
    asset = HERE / f"{name}.json"
    if os.environ.get("GOLDEN") == "write":
        files.write_json(asset, found[name])
    kept = files.read_json(asset)
    assert found[name]["lr"] == pytest.approx(kept["lr"], rel=1e-9)
    for key in ("loss", "grad_norm", "validation", "metrics"):
        assert found[name][key] == pytest.approx(kept[key], rel=1e-4, abs=1e-4), key

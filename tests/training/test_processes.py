"""Several processes train one model: the losses of one process, the same bytes each time, one writer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.training.process_group import lost
from stages.training.shared_sum import SharedSum
from tests.conftest import ROOT

SIZES = (2, 4)
CALM: dict[str, Any] = {"warmup": 40, "batch_size": 4, "epochs": 4}
RUNS: dict[str, dict[str, Any]] = {
    "uneven rows, and fewer rows than ranks": {},  # seven sentences: four and three
    "accumulated": {"accumulate": 2, "clip": 0.5},
    "bucketed": {"batches": "bucketed", "epochs": 3},
    "packed": {"batches": "packed", "context": 5, "loss": "notebook"},
    "notebook's block": {"block": "notebook", "batch_size": 5},
    "pre-norm, tied": {"block": "pre", "tied_output": True, "activation": "gelu", "clip": 0.1},
    "no dropout": {"dropout": 0.0},
    "muon": {"optimizer": "muon"},
    "adafactor": {"optimizer": "adafactor"},
    "schedulefree": {"optimizer": "schedulefree", "schedule": "constant"},
    "sgd": {"optimizer": "sgd"},
    "nadam": {"optimizer": "nadam"},
    "diverging": {"schedule": "none", "lr": 1e30, "optimizer": "sgd"},
}
SHARDED: dict[str, dict[str, Any]] = {
    name: {**RUNS.get(name, {}), "fsdp": True}
    for name in (
        "uneven rows, and fewer rows than ranks",
        "accumulated",
        "packed",
        "pre-norm, tied",
        "sgd",
        "diverging",
    )
} | {
    name: {"optimizer": name, "fsdp": True, "decay": 0.01}
    for name in ("adam", "adamw", "radam", "adagrad", "lion", "ademamix")
}


def together(size: int, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = python("tests.training.ranks", str(size), json.dumps([CALM | run for run in runs]))
    return [json.loads(line) for line in done.stdout.splitlines()]


def python(module: str, *arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", module, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NOAM_LIVE": "off"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def by_one() -> dict[str, dict[str, Any]]:
    """Of one process. Muon's products are in bf16, which makes much of a last digit: it is compared by equal parts."""
    wanted = RUNS | {f"sharded, {name}": changes | {"fsdp": False} for name, changes in SHARDED.items()}
    wanted |= {f"muon, {size} shards": RUNS["muon"] | {"shards": size} for size in SIZES}
    return dict(zip(wanted, together(1, list(wanted.values())), strict=True))


@pytest.fixture(scope="module", params=SIZES)
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def by_ranks(size: int) -> dict[str, dict[str, Any]]:
    """What came of each run; of the first one twice."""
    names = [*RUNS, *(f"sharded, {name}" for name in SHARDED), "again"]
    runs = [*RUNS.values(), *SHARDED.values(), next(iter(RUNS.values()))]
    return dict(zip(names, together(size, runs), strict=True))


@pytest.mark.parametrize("name", [*RUNS, *(f"sharded, {name}" for name in SHARDED)])
def test_the_losses_are_those_of_one_process(
    name: str, size: int, by_one: dict[str, dict[str, Any]], by_ranks: dict[str, dict[str, Any]]
) -> None:
    one, several = by_one[f"muon, {size} shards" if name == "muon" else name], by_ranks[name]
    close = 1e-4 if name == "muon" else 1e-5
    assert len(several["losses"]) == len(one["losses"])
    assert several["rates"] == one["rates"]
    assert several["losses"] == pytest.approx(one["losses"], abs=close)
    assert several["norms"] == pytest.approx(one["norms"], rel=1e-4)
    assert several["validations"] == pytest.approx(one["validations"], abs=close)
    assert several["shapes"] == one["shapes"]
    assert [words.split(":")[0] for words in several["divergence"]] == [
        words.split(":")[0] for words in one["divergence"]
    ]


def test_a_run_diverges_on_all_ranks_at_the_same_update(by_ranks: dict[str, dict[str, Any]]) -> None:
    for name in ("diverging", "sharded, diverging"):  # a rank that went on would have waited for the others in vain
        (said,) = by_ranks[name]["divergence"]
        assert "diverged at update" in said


def test_the_same_number_of_processes_gives_the_same_bytes(by_ranks: dict[str, dict[str, Any]]) -> None:
    assert by_ranks["again"] == by_ranks[next(iter(RUNS))]


def test_a_sharded_model_has_a_part_of_the_weights_in_each_process(
    size: int, by_ranks: dict[str, dict[str, Any]]
) -> None:
    whole, part = by_ranks["no dropout"]["memory"], by_ranks["sharded, adam"]["memory"]
    assert whole / size <= part < whole * 1.3 / size  # rank 0 has the longer parts of rows that cannot be halved


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Whole runs with checkpoints, one of them stopped on its way and gone on with by another number."""
    small = {"batch_size": 4, "epochs": 60, "warmup": 1000, "checkpoint_every": 7}
    wanted = {
        "one": small | {"processes": 1},
        "two": small | {"processes": 2},
        "two, then one": small | {"processes": 2, "stop_after": 1, "and_then": {"processes": 1}},
    }
    done = python("tests.training.together", json.dumps(list(wanted.values())), folder=tmp_path_factory.mktemp("runs"))
    return dict(zip(wanted, [json.loads(line) for line in done.stdout.splitlines()], strict=True))


def test_another_number_of_processes_goes_on_with_a_checkpoint(runs: dict[str, dict[str, Any]]) -> None:
    found, whole = runs["two, then one"], runs["one"]
    assert found["told"]["begun"] == [0, -1]
    assert len(found["losses"]) == len(whole["losses"]) == 120
    assert found["losses"] == pytest.approx(whole["losses"], abs=1e-5)
    assert found["validations"] == pytest.approx(whole["validations"], abs=1e-5)


def test_what_is_told_is_each_update_once_and_each_measurement(runs: dict[str, dict[str, Any]]) -> None:
    told = runs["two"]["told"]
    assert told["updates"] == 120
    assert told["others"] == ["Validation"] * len(runs["one"]["validations"])
    assert runs["two"]["snapshots"].keys() == runs["one"]["snapshots"].keys()
    assert len(runs["two"]["snapshots"]) == 4


def test_what_gloo_says_of_others_is_told_from_errors_of_our_own() -> None:
    assert lost(RuntimeError("Application timeout caused pair closure")) is not None
    assert (
        lost(RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed")) is not None
    )
    assert lost(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
    assert lost(OSError("gloo")) is None


def test_a_shared_sum_is_in_the_order_of_the_ranks_and_of_this_turn_alone(tmp_path: Path) -> None:
    like = torch.zeros(3)
    (tmp_path / "sum").write_bytes(bytes(SharedSum.bytes_of(like, 3)))
    ranks = [SharedSum(tmp_path / "sum", like, rank, 3) for rank in range(3)]
    first = [torch.tensor([1.0, 1e8, 3.0]), torch.tensor([2.0, 1.0, 4.0]), torch.tensor([3.0, -1e8, 5.0])]
    for rank, vector in zip(ranks, first, strict=True):
        rank.put(vector)
    ranks[0].take(own := torch.empty(3))
    assert own.tolist() == [6.0, 0.0, 12.0]  # (1e8 + 1) - 1e8 in this order, rounded
    ranks[0].put(torch.tensor([9.0, 9.0, 9.0]))  # one sum ahead
    for rank in ranks[1:]:
        rank.take(other := torch.empty(3))
        assert other.tolist() == own.tolist()

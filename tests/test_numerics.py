"""Arithmetic: what a process computes depends on the parameter alone, not on the environment or on when it is set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import torch

from stages import numerics
from tests.conftest import ROOT

PORTABLE = {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
HOSTILE = {
    "OMP_NUM_THREADS": "2",
    "MKL_NUM_THREADS": "2",
    "MKL_DYNAMIC": "FALSE",
    "MKL_CBWR": "AVX2",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
}
pytestmark = pytest.mark.skipif(not torch.cpu._is_avx2_supported(), reason="needs a processor with AVX2")

SCRIPT = """
import hashlib, json, os, sys

mode = sys.argv[1]
names = ("MKL_CBWR", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
import torch
from torch.nn import functional as F
from stages import numerics
from tests.training.small import new_session

if mode == "unset":  # what was in the environment before torch was imported counts
    torch.set_num_threads(1)
else:
    numerics.set_numerics(mode)

def digest(*tensors):
    return hashlib.md5(b"".join(one.detach().numpy().tobytes() for one in tensors)).hexdigest()

def numbers(*shape, by):  # from exact arithmetic
    n = torch.Size(shape).numel()
    return ((torch.arange(n) * 7919 % 2003 - 1001).float() / by).view(shape)

a, b = numbers(6, 640, by=997), numbers(640, 128, by=991)
operators = [
    a @ b, b.t() @ a.t(), torch.bmm(a.view(6, 20, 32), a.view(6, 32, 20)), torch.addmm(b[0], a, b),
    b.exp(), b.softmax(1), b.log_softmax(1), F.layer_norm(b, (128,)), F.gelu(b), b.sin(),
]
trained = {}
for block in ("notebook", "pre"):
    session = new_session(d_model=96, hidden=200, batch_size=5, epochs=5, shards=2, threads=2, block=block)
    losses = [record.loss for record in session.records()]
    trained[block] = [digest(*session.model.parameters()), losses]
print(json.dumps({
    "operators": [digest(one) for one in operators],
    "trained": trained,
    "environment": {name: os.environ[name] for name in names if name in os.environ},
    "threads": torch.get_num_threads(),
    "deterministic": torch.are_deterministic_algorithms_enabled(),
    "described": numerics.describe(mode),
}))
"""


@cache
def computed(mode: str, **environ: str) -> dict[str, Any]:
    """What a process computes and says, with these variables and no other of their kind."""
    bare = {name: value for name, value in os.environ.items() if name not in HOSTILE}
    environment = bare | {"PYTHONPATH": str(ROOT)} | environ
    done = subprocess.run([sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("mode", ["portable", "native"])
def test_the_callers_environment_changes_no_byte(mode: str) -> None:
    hostile, bare = computed(mode, **HOSTILE), computed(mode)
    assert hostile["operators"] == bare["operators"]
    assert hostile["trained"] == bare["trained"]
    assert hostile["environment"] == bare["environment"] == (PORTABLE if mode == "portable" else {})


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_no_variable_of_the_environment_alone_changes_a_byte(name: str) -> None:
    assert computed("portable", **{name: HOSTILE[name]}) == computed("portable")


def test_set_after_torch_is_imported_it_is_as_if_set_before() -> None:
    before, after = computed("unset", **PORTABLE), computed("portable")
    assert before["operators"] == after["operators"]
    assert before["trained"] == after["trained"]


def test_portable_and_native_are_not_the_same_here() -> None:
    """Where they are, the tests above show less."""
    if computed("portable")["operators"] == computed("native")["operators"]:
        pytest.skip("this processor's own code paths are the portable ones")
    losses = [computed(mode)["trained"]["pre"][1] for mode in ("portable", "native")]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


@pytest.mark.parametrize("mode", ["portable", "native"])
def test_what_is_set_and_what_is_said_of_it(mode: str) -> None:
    found = computed(mode, **HOSTILE)
    assert (found["threads"], found["deterministic"]) == (1, True)
    said = found["described"]
    assert list(said) == [
        "numerics",
        "device",
        "torch",
        "numpy",
        "python",
        "math_library",
        "blas",
        "kernels",
        "processor",
        "features",
    ]
    assert all(isinstance(value, str) and value for value in said.values())
    assert (said["numerics"], said["torch"]) == (mode, torch.__version__)
    assert "avx2" in said["features"].split()
    assert mode == "native" or said["kernels"] == "AVX2"
    assert said["math_library"] != "unknown"


def test_a_description_leaves_out_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "_cpuinfo", lambda: "")
    monkeypatch.setattr(numerics, "_config", lambda: "nothing to see")
    said = numerics.describe("native")
    assert (said["math_library"], said["features"]) == ("unknown", "")
    assert said["processor"]


def test_neither_model_nor_optimiser_takes_a_square_root_of_tensors() -> None:
    """torch.sqrt, and std by it, are not the same on other processors even so."""
    found = [path for name in ("model", "optim", "training") for path in (ROOT / "stages" / name).glob("*.py")]
    assert len(found) > 15
    for path in found:
        text = path.read_text(encoding="utf-8")
        assert [word for word in (".std(", ".sqrt()", "torch.sqrt", ".var(") if word in text] == [], path

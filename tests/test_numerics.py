"""Arithmetic: what a process computes depends on the parameter alone, not on the environment or on when it is set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache

import pytest
import torch

from stages import numerics
from tests.conftest import ROOT

HOSTILE = {
    "OMP_NUM_THREADS": "2",
    "MKL_NUM_THREADS": "2",
    "MKL_CBWR": "AVX2",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_DYNAMIC": "FALSE",
}
avx2 = pytest.mark.skipif(not torch.cpu._is_avx2_supported(), reason="needs a processor with AVX2")

# Digests of operators that differ between code paths, of inputs from exact arithmetic.
PRODUCTS = """
import os, sys
if sys.argv[1] == "before":
    os.environ.update(MKL_CBWR="COMPATIBLE", ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2")
import hashlib
import torch
from torch.nn import functional as F
if sys.argv[1] == "before":
    torch.set_num_threads(1)
else:
    from stages import numerics
    numerics.set_numerics(sys.argv[1])

def numbers(*shape, by):
    n = torch.Size(shape).numel()
    return ((torch.arange(n) * 7919 % 2003 - 1001).float() / by).view(shape)

a, b = numbers(6, 640, by=997), numbers(640, 128, by=991)
results = [
    a @ b, b.t() @ a.t(), torch.bmm(a.view(6, 20, 32), a.view(6, 32, 20)), torch.addmm(b[0], a, b),
    b.exp(), b.softmax(1), b.log_softmax(1), F.layer_norm(b, (128,)), F.gelu(b), b.sin(),
]
print(*(hashlib.md5(one.numpy().tobytes()).hexdigest() for one in results))
"""

TRAINING = """
import hashlib, sys
from stages import numerics
numerics.set_numerics(sys.argv[1])
from tests.training.small import new_session
for block in ("notebook", "pre"):
    session = new_session(d_model=96, hidden=200, batch_size=5, epochs=5, shards=2, threads=2, block=block)
    losses = [record.loss for record in session.records()]
    weights = b"".join(weight.detach().numpy().tobytes() for weight in session.model.parameters())
    print(block, hashlib.md5(weights).hexdigest(), losses)
"""


@cache
def python(script: str, mode: str, **environ: str) -> str:
    """What a script prints in a process with no setting but these."""
    bare = {name: value for name, value in os.environ.items() if name not in HOSTILE}
    done = subprocess.run(
        [sys.executable, "-c", script, mode],
        capture_output=True,
        text=True,
        env=bare | {"PYTHONPATH": str(ROOT)} | environ,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_callers_environment_changes_no_byte_of_a_training() -> None:
    assert python(TRAINING, "portable", **HOSTILE) == python(TRAINING, "portable")


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("mode", ["portable", "native"])
def test_no_variable_of_the_environment_changes_a_byte_of_a_training(mode: str, name: str) -> None:
    assert python(TRAINING, mode, **{name: HOSTILE[name]}) == python(TRAINING, mode)


@avx2
def test_set_after_torch_is_imported_it_is_as_if_set_before() -> None:
    after = python(PRODUCTS, "portable")
    assert after == python(PRODUCTS, "before")
    assert after == python(PRODUCTS, "portable", **HOSTILE)


@avx2
def test_native_is_what_the_libraries_choose_here() -> None:
    """And not what the environment says; where it is what portable is, the test above shows nothing."""
    native = python(PRODUCTS, "native")
    assert len(native.split()) == 10
    assert native == python(PRODUCTS, "native", MKL_CBWR="COMPATIBLE", OMP_NUM_THREADS="2")
    if native == python(PRODUCTS, "portable"):
        pytest.skip("this processor's own code paths are the portable ones")


SET = """
import json, os, sys, torch
from stages import numerics
numerics.set_numerics(sys.argv[1])
names = ("MKL_CBWR", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
found = {name: os.environ[name] for name in names if name in os.environ}
print(json.dumps({
    "environment": found,
    "threads": torch.get_num_threads(),
    "deterministic": torch.are_deterministic_algorithms_enabled(),
    "described": numerics.describe(sys.argv[1]),
}))
"""


@avx2
@pytest.mark.parametrize("mode", ["portable", "native"])
def test_what_is_set_and_what_is_said_of_it(mode: str) -> None:
    found = json.loads(python(SET, mode, **HOSTILE))
    portable = {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    assert found["environment"] == (portable if mode == "portable" else {})
    assert (found["threads"], found["deterministic"]) == (1, True)
    said = found["described"]
    assert list(said) == [
        "numerics",
        "torch",
        "numpy",
        "python",
        "math_library",
        "kernels",
        "processor",
        "features",
    ]
    assert all(isinstance(value, str) and value for value in said.values())
    assert (said["numerics"], said["torch"]) == (mode, torch.__version__)
    assert "avx2" in said["features"].split()
    if mode == "portable":
        assert said["kernels"] == "AVX2"
    assert said["math_library"] != "unknown"


def test_neither_model_nor_optimiser_takes_a_square_root_of_tensors() -> None:
    """torch.sqrt, and std by it, are not the same on other processors even so."""
    names = [f"stages/{name}" for name in ("model", "optim", "training")]
    found = [path for name in names for path in (ROOT / name).glob("*.py")]
    assert len(found) > 15
    for path in found:
        text = path.read_text(encoding="utf-8")
        assert [word for word in (".std(", ".sqrt()", "torch.sqrt", ".var(") if word in text] == [], path


def test_a_description_leaves_out_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "_cpuinfo", lambda: "")
    monkeypatch.setattr(numerics, "_config", lambda: "nothing to see")
    said = numerics.describe("native")
    assert (said["math_library"], said["features"]) == ("unknown", "")
    assert said["processor"]

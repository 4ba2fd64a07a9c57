"""How torch and NumPy compute: the same bytes on other machines, or all speed; and what they computed with.

Settled before the first arithmetic of a process: the math libraries read the environment once, when they are first
used, so that the environment of whoever called does not count.

portable  MKL in its compatible mode (one code path for every processor), AVX2 kernels even where AVX-512 is there.
          torch.sqrt and std on tensors still differ between processors, so the model and the optimiser use neither.
native    what the libraries choose for this processor.

In both, NumPy's OpenBLAS has one thread and, where there is AVX2, the kernels for Haswell: it reads this as it is
loaded, so this module has to be imported before NumPy is. And numbers below 1.2e-38 count as zero: some processors take
a hundred times as long for them, and Adam's averages of a gradient that is zero get there within a thousand updates.
"""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path


@cache
def _cpuinfo() -> str:
    file = Path("/proc/cpuinfo")
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _processor_features() -> set[str]:
    """What Linux says of the first processor; nothing elsewhere."""
    found = re.search(r"^(?:flags|Features)\s*: (.+)$", _cpuinfo(), re.MULTILINE)
    return set(found[1].split()) if found else set()


_BLAS_KERNELS = "Haswell" if {"avx2", "fma"} <= _processor_features() else ""
os.environ["OPENBLAS_NUM_THREADS"] = "1"
if _BLAS_KERNELS:
    os.environ["OPENBLAS_CORETYPE"] = _BLAS_KERNELS

import numpy as np  # noqa: E402
import torch  # noqa: E402
from threadpoolctl import threadpool_info  # noqa: E402

_PORTABLE = {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
_FEATURES = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")


def set_numerics(mode: str) -> None:
    """Choose `portable` or `native`. One intra-op thread: what runs at once is for the shards to say."""
    for name in _PORTABLE:
        os.environ.pop(name, None)
    if mode == "portable":
        avx2 = torch.cpu._is_avx2_supported()  # without it, the kernels of this setting would not run at all
        os.environ.update(_PORTABLE if avx2 else {"MKL_CBWR": _PORTABLE["MKL_CBWR"]})
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # of this thread, and of those that it starts
    torch.set_deterministic_debug_mode("error")  # `use_deterministic_algorithms` would import torch's compiler
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@cache
def check_blas() -> None:
    """Make sure that NumPy runs the kernels chosen above.

    Raises:
        RuntimeError: NumPy was imported before this module was.
    """
    for library in _openblas():
        if _BLAS_KERNELS and library["architecture"] != _BLAS_KERNELS:
            raise RuntimeError(f"import stages.numerics before numpy, which runs {library['architecture']} kernels now")


def _openblas() -> list[dict[str, str]]:
    """NumPy's own copies of OpenBLAS in this process; none where it is built with another library."""
    found = threadpool_info()
    return [one for one in found if one["internal_api"] == "openblas" and "numpy" in one["filepath"]]


def describe(mode: str, device: str = "cpu") -> dict[str, str]:
    """What a run computes with: for the run's record, never for anything that DVC hashes."""
    return {
        "numerics": mode,
        "device": device,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "math_library": _math_library(),
        "blas": ", ".join(f"OpenBLAS {one['version']} {one['architecture']}" for one in _openblas()) or "unknown",
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        "features": " ".join(_features()),
    }


def _math_library() -> str:
    found = re.search(r"(Intel\(R\) oneAPI Math Kernel Library[^\n]*?|OpenBLAS[^\n]*?) for|BLAS_INFO=(\w+)", _config())
    return (found[1] or found[2]) if found else "unknown"


@cache
def _config() -> str:
    return str(torch.__config__.show())


def _processor() -> str:
    found = re.search(r"^model name\s*: (.+)$", _cpuinfo(), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _features() -> list[str]:
    present = _processor_features()
    return [name for name in _FEATURES if name in present]

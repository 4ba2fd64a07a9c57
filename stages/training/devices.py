"""Where training computes, and whether it can do so in bf16 there. Draws are made on the processor in any case.

A process that is to be forked must not wake a GPU, which its forks could not use then: `resolve` only asks what is
there.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from stages.errors import ParamError

AUTO = ("cuda", "mps", "cpu")


def available() -> list[str]:
    """The kinds of devices that torch finds here, the fastest first."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counts GPUs without waking one
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [kind for kind in AUTO if there[kind]]


def resolve(wanted: str, processes: int = 1) -> str:
    """The kind of device that a choice of `device` means on this machine.

    Raises:
        ParamError: torch finds none such here, or fewer GPUs than this machine's processes need.
    """
    found = available()
    if wanted == "auto":  # several processes work on GPUs of one kind, or on the processor
        wanted = next(kind for kind in found if kind != "mps" or processes == 1)
    if wanted not in found:
        builds = f"torch {torch.__version__}, built {_built_for()}"
        raise ParamError(
            "device", f" = {wanted}: expected {' or '.join([*found, 'auto'])} here ({builds}, finds no other)"
        )
    if wanted == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which its deterministic products ask for
        if processes > (gpus := torch.cuda.device_count()):
            raise ParamError("processes", f" = {processes}: expected, with device: cuda, at most {gpus}, a GPU each")
    return wanted


def _built_for() -> str:
    return f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"


def device_of(kind: str, local_rank: int = 0) -> torch.device:
    """The device of one process: with several GPUs, one each."""
    if kind != "cuda":
        return torch.device(kind)
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def check_precision(precision: str, kind: str) -> None:
    """Make sure that this machine has bf16 where it is asked for. Wakes a GPU.

    Raises:
        ParamError: it has none, or none that is of use.
    """
    if precision != "bf16":
        return
    problem = ""
    if kind == "cpu" and not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        problem = "this processor has neither AVX512_BF16 nor AMX, without which bf16 is tens of times slower than fp32"
    elif kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        problem = f"{torch.cuda.get_device_name()} has no bf16"
    elif kind == "mps" and not torch.backends.mps.is_macos_or_newer(14, 0):
        problem = "mps has bf16 from macOS 14 on"
    if problem:
        raise ParamError("precision", f" = bf16: expected fp32 here ({problem})")


def is_host(device: torch.device) -> bool:
    """What is computed there lies in this process's own memory."""
    return device.type == "cpu"


def there(tensor: Tensor, device: torch.device) -> Tensor:
    """A batch or masks, on their way to the device; the tensor itself where it is there."""
    return tensor if is_host(device) else tensor.to(device, non_blocking=True)


def name_of(kind: str) -> str:
    """As a run's record has it. Wakes a GPU."""
    return f"cuda ({torch.cuda.get_device_name()})" if kind == "cuda" else kind

"""What an optimiser remembers, as named tensors and JSON, so that it goes on to the same bytes after a stop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stages.optim.noam import ScheduledOptimizer

_TENSOR, _TRANSPOSED, _NUMBER = "tensor", "transposed", "number"


def pack(optimizer: ScheduledOptimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimiser.

    Returns:
        Tensors, the optimiser's own, by name: 'exp_avg' where there is one weight, else '3.exp_avg' for the fourth, and
        'group.0.d_numerator' for what a group has; and a plan of JSON that says where they belong, with the numbers
        that are no tensors.
    """
    tensors: dict[str, Tensor] = {}
    whole = optimizer.state_dict()
    one = sum(len(group["params"]) for group in whole["param_groups"]) == 1
    states = {str(i): _packed(entry, "" if one else f"{i}", tensors) for i, entry in whole["state"].items()}
    groups = [
        _packed({key: group[key] for key in _moving(group, made)}, f"group.{i}", tensors)
        for i, (group, made) in enumerate(zip(whole["param_groups"], optimizer.made, strict=True))
    ]
    return tensors, {"state": states, "groups": groups}


def unpack(optimizer: ScheduledOptimizer, tensors: Mapping[str, Tensor], plan: Mapping[str, Any], step: int) -> None:
    """Restore what `pack` returned, of an optimiser made with the same settings, after `step` updates.

    Raises:
        KeyError, ValueError: it is of another optimiser.
    """
    groups = optimizer.state_dict()["param_groups"]
    for group, kept in zip(groups, plan["groups"], strict=True):
        group.update(_unpacked(kept, tensors))
    states = {int(i): _unpacked(entry, tensors) for i, entry in plan["state"].items()}
    optimizer.load_state_dict({"state": states, "param_groups": groups, "step": step})


def _moving(group: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    """The keys of a group that updates have changed, but for the rate, which the schedule knows."""
    return [
        key
        for key, value in group.items()
        if key not in ("params", "lr") and (torch.is_tensor(value) or key not in made or value != made[key])
    ]


def _packed(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        # A file keeps no strides, and products round otherwise with others.
        transposed = not value.is_contiguous() and value.mT.is_contiguous()
        tensors[name] = value.mT if transposed else value
        return {_TENSOR: name, **({_TRANSPOSED: True} if transposed else {})}
    if isinstance(value, float) and not math.isfinite(value):
        return {_NUMBER: str(value)}  # JSON has none such
    if isinstance(value, dict):
        return {key: _packed(inner, f"{name}.{key}".lstrip("."), tensors) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(inner, f"{name}.{i}", tensors) for i, inner in enumerate(value)]
    return value


def _unpacked(plan: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(plan, list):
        return [_unpacked(inner, tensors) for inner in plan]
    if not isinstance(plan, dict):
        return plan
    if _NUMBER in plan:
        return float(plan[_NUMBER])
    if _TENSOR in plan:
        tensor = tensors[plan[_TENSOR]].clone()  # aligned as torch does: what comes from a file rounds otherwise
        return tensor.mT if plan.get(_TRANSPOSED) else tensor
    return {key: _unpacked(inner, tensors) for key, inner in plan.items()}

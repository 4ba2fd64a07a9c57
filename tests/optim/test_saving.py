"""What an optimiser remembers, as tensors and JSON. (That runs go on to the same bytes: tests/training.)"""

from __future__ import annotations

import json
import math

import torch
from torch import nn

from stages.optim.noam import ScheduledOptimizer
from stages.optim.registry import make_optimizer
from stages.optim.saving import pack, unpack
from tests.training.small import settings


def stepped(optimizer: str, count: int) -> ScheduledOptimizer:
    weight = nn.Parameter(torch.linspace(-1, 1, 6).view(2, 3))
    made = make_optimizer([("w", weight)], settings(optimizer=optimizer, schedule="constant", lr=1.0), updates=9)
    for t in range(count):
        weight.grad = (weight.detach() + t).sin()
        made.step()
    return made


def test_one_weight_has_plain_names_and_what_does_not_move_is_left_out() -> None:
    tensors, plan = pack(stepped("adam", 2))
    assert sorted(tensors) == ["exp_avg", "exp_avg_sq", "step"]
    assert plan["groups"] == [{}]
    assert pack(stepped("prodigy", 0)) == ({}, {"state": {}, "groups": [{}]})
    tensors, plan = pack(stepped("prodigy", 2))
    assert sorted(tensors) == ["exp_avg", "exp_avg_sq", "group.0.d_de_nom", "group.0.d_numerator", "p0", "s"]
    assert plan["groups"][0].keys() == {"d_hat", "d_numerator", "d_de_nom", "step"}  # d itself has not grown yet


def test_numbers_that_are_not_finite_are_strict_json() -> None:
    made, again = stepped("prodigy", 3), stepped("prodigy", 0)
    made.param_groups[0]["d_max"], made.param_groups[0]["d_hat"] = math.inf, math.nan
    tensors, plan = pack(made)
    unpack(again, tensors, json.loads(json.dumps(plan, allow_nan=False)), 3)
    (group,) = again.param_groups
    assert group["d_max"] == math.inf
    assert math.isnan(group["d_hat"])
    assert group["d"] == made.param_groups[0]["d"] > 0
    assert again.updates == 3


def test_the_layout_of_a_matrix_is_kept_and_its_memory_is_not_shared() -> None:
    made, again = stepped("soap", 2), stepped("soap", 0)
    tensors, plan = pack(made)
    ours, theirs = (one.state[one.param_groups[0]["params"][0]] for one in (made, again))
    ours["Q"][1] = ours["Q"][1].mT.contiguous().mT
    tensors, plan = pack(made)
    assert all(tensor.is_contiguous() for tensor in tensors.values())  # as the file wants them
    unpack(again, tensors, plan, 2)
    ours, theirs = (one.state[one.param_groups[0]["params"][0]] for one in (made, again))
    assert [q.stride() for q in theirs["Q"]] == [q.stride() for q in ours["Q"]]
    assert theirs["Q"][1].stride() == (1, 3)
    assert all(torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in zip(ours["Q"], theirs["Q"], strict=True))

"""Muon for the matrices inside the blocks, AdamW for all else, as one optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stages.optim.noam import bare_step


class MuonAndAdamW(torch.optim.Optimizer):
    """Two of torch's optimisers that share `param_groups` and `state`: the first group is Muon's, the second AdamW's.

    Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks") replaces the momentum of a
    matrix by the nearest orthogonal one, approximately. It is made for hidden layers: embedding, output layer, biases
    and norms go to AdamW. Each update of a matrix is scaled to the size that AdamW's would have, so that both use the
    same rate and decay (Liu et al. 2025, "Muon is Scalable for LLM Training", section 2.2). A block's queries, keys and
    values are one matrix here.

    Args:
        matrices: of two dimensions, for Muon.
        rest: for AdamW.
        lr: rate of both.
        betas: the first is the momentum of Muon as well.
        eps: of AdamW.
        decay: decoupled weight decay of both.
    """

    def __init__(
        self,
        matrices: Sequence[Tensor],
        rest: Sequence[Tensor],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        decay: float,
    ) -> None:
        muon = torch.optim.Muon(matrices, lr=lr, momentum=betas[0], weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        adamw = torch.optim.AdamW(rest, lr=lr, betas=betas, eps=eps, weight_decay=decay, fused=True)
        self._parts: list[torch.optim.Optimizer] = [muon, adamw]
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._share()

    def _share(self) -> None:
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.__setstate__({"state": self.state, "param_groups": [group]})

    def step(self, closure: Any = None) -> Any:
        """One update of all; returns what `closure` returns, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for part in self._parts:
                bare_step(part)(part, None)
        return loss

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

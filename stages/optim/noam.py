"""The Noam optimiser: Adam whose rate follows a schedule of the update number.

Kingma & Ba 2015, "Adam: A Method for Stochastic Optimization" (the update), and Vaswani et al. 2017, section 5.3 (the
schedule).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from stages.optim.schedules import Schedule, noam_rate

BaseOptimizer = Callable[..., torch.optim.Optimizer]


class ScheduledOptimizer(torch.optim.Optimizer):
    """A torch optimiser that sets the rate of another one before each of its updates.

    It and its base share `param_groups` and `state`, so that clipping, hooks and checkpoints see one optimiser. The
    rate in `param_groups` is the one that the last update used; before the first it is `init_lr`. A rate that somebody
    else writes there, such as a scheduler of torch, is overwritten at the next update, and a warning says so once.

    Args:
        params: tensors or groups, as for any torch optimiser.
        base: makes the optimiser that updates the weights, called with `(params, lr=…)`.
        schedule: rate of update number t, from 1.
        init_lr: rate shown before the first update.
    """

    def __init__(self, params: ParamsT, base: BaseOptimizer, schedule: Schedule, *, init_lr: float = 0.0) -> None:
        self.base = base(params, lr=init_lr)
        self.schedule = schedule
        self.init_lr = init_lr
        self._step = 0
        self._rate = init_lr  # of the last update
        self._warned = False
        super().__init__(self.base.param_groups, dict(self.base.defaults))
        self.state = self.base.state  # some optimisers fill it when they are made
        self._share()
        self.made = [dict(group) for group in self.param_groups]  # as they were before any update

    def _share(self) -> None:
        """Base and wrapper hold the very same groups and state."""
        self.base.__setstate__({"state": self.state, "param_groups": self.param_groups})

    def rate(self, step: int | None = None) -> float:
        """The rate of update number `step`; without it, of the last update done (`init_lr` before the first)."""
        if step is None:
            return self._rate
        return self.schedule(step) if step else self.init_lr

    @property
    def updates(self) -> int:
        """Updates done so far."""
        return self._step

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update at the next rate; returns what `closure` returns, if there is one."""
        return self.update(closure)

    def update(self, closure: Callable[[], float] | None = None) -> float | None:
        """As `step`, without the hooks that torch calls around it: for loops that have none."""
        if not self._warned and any(float(group["lr"]) != self._rate for group in self.param_groups):
            self._warned = True
            warnings.warn("a rate written to param_groups is not used: the schedule sets the rate", stacklevel=4)
        self._step += 1
        self._rate = self.rate(self._step)
        for group in self.param_groups:
            group["lr"] = self._rate
        with torch.set_grad_enabled(bool(self.base.defaults.get("differentiable"))):
            if closure is None and _update_one_tensor(self.base):
                return None
            return bare_step(self.base)(self.base, closure)

    def state_dict(self) -> dict[str, Any]:
        """As in torch, with `step`, the number of updates done."""
        return {**super().state_dict(), "step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the base's state and the position in the schedule, which stays the one given when this was made.

        A state of the bare base optimiser is taken too: its own counters tell the number of updates.
        """
        super().load_state_dict(state_dict)
        counters = (entry["step"] for entry in state_dict["state"].values() if "step" in entry)
        self._step = int(state_dict["step"] if "step" in state_dict else max(counters, default=0))
        self._rate = self.rate(self._step)
        for group in self.param_groups:
            group["lr"] = self._rate

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch; a group without a rate of its own gets the one that the others show."""
        super().add_param_group({"lr": self.rate(), **param_group} if "lr" not in param_group else param_group)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("step", None)  # a torch scheduler puts its counter around this very optimiser's method here
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()


class NoamOptimizer(ScheduledOptimizer):
    """Adam under the warm-up schedule of Vaswani et al. 2017, equation 3, in the notebook's signature.

    The defaults are the notebook's. The paper's values differ: `warmup` is 4000 there, and it uses no weight decay
    (`decay=0`). `betas` and `eps` are the paper's.

    Args:
        params: tensors or groups, as for any torch optimiser.
        d_model: width of the model; the rate falls with its square root.
        warmup: updates until the peak rate `factor · (d_model · warmup)^-0.5`.
        init_lr: rate shown before the first update; no update uses it.
        eps: added to Adam's denominator.
        decay: weight decay, an L2 penalty in the gradient as in Adam; see `decoupled`.
        factor: multiplies the rate.
        betas: decay rates of Adam's two moments.
        decoupled: shrink the weights beside the update (Loshchilov & Hutter 2019, AdamW) instead of an L2 penalty.
        base: optimiser that updates the weights. `betas`, `eps` and `decay` are handed on where it has them.
        base_options: further arguments of the base optimiser.

    Raises:
        ValueError: `d_model` or `warmup` below 1, or `factor` not above 0.
        TypeError: an option that the base optimiser does not have.

    Example:
        >>> optimizer = NoamOptimizer(model.parameters(), d_model=512, warmup=4000, decay=0)
        >>> loss.backward(); optimizer.step(); optimizer.zero_grad(); optimizer.rate()
    """

    def __init__(
        self,
        params: ParamsT,
        d_model: int,
        warmup: int = 40000,
        init_lr: float = 0,
        eps: float = 1e-9,
        decay: float = 0.01,
        *,
        factor: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.98),
        decoupled: bool = False,
        base: type[torch.optim.Optimizer] = torch.optim.Adam,
        **base_options: Any,
    ) -> None:
        if factor <= 0:
            raise ValueError(f"factor = {factor}: expected a number > 0")
        noam_rate(1, d_model, warmup)  # refuses impossible values before anything is made
        params = _lists(params)
        adopted = adapt(base, params, betas=betas, eps=eps, decay=decay, decoupled=decoupled, **base_options)
        schedule = partial(noam_rate, d_model=d_model, warmup=warmup, factor=factor)
        super().__init__(params, adopted, schedule, init_lr=init_lr)


def adapt(
    base: type[torch.optim.Optimizer],
    params: ParamsT,
    *,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    decoupled: bool,
    **options: Any,
) -> BaseOptimizer:
    """`base` with the options that it has, and torch's fused kernel where it fits.

    Raises:
        TypeError: weight decay, or its decoupled form, that the base optimiser does not have.
    """
    known = inspect.signature(base).parameters
    wanted = {"betas": betas, "eps": eps, "weight_decay": decay}
    options = {**{name: value for name, value in wanted.items() if name in known}, **options}
    if decay and "weight_decay" not in known:
        raise TypeError(f"{base.__name__} has no weight decay, yet decay = {decay}")
    if decoupled and base is not torch.optim.AdamW:
        if "decoupled_weight_decay" not in known:
            raise TypeError(f"{base.__name__} has no decoupled weight decay")
        options["decoupled_weight_decay"] = True
    chosen = {"fused", "foreach", "differentiable"} & options.keys()
    if base in (torch.optim.Adam, torch.optim.AdamW) and not chosen:
        options["fused"] = all(_fusable(tensor) for tensor in _tensors(params))
    return partial(base, **options)


def bare_step(base: torch.optim.Optimizer) -> Callable[..., float | None]:
    """The step of an optimiser without what torch wraps around it.

    The outer layer calls hooks: the wrapper's have been called. The next one sets whether gradients are recorded, which
    `ScheduledOptimizer.step` does, and imports torch's compiler to do so.
    """
    step: Any = type(base).step
    if getattr(step, "hooked", False):
        step = step.__wrapped__
    if getattr(getattr(step, "__code__", None), "co_name", "") == "_use_grad":
        step = step.__wrapped__
    return step  # type: ignore[no-any-return]


def _update_one_tensor(base: torch.optim.Optimizer) -> bool:
    """Call the fused kernel of Adam where all it has is one tensor, as torch would; False where that is not so.

    Torch sorts tensors by device and type and counts their updates first, which takes a third as long as the kernel
    does for the tensor of a small model.
    """
    if type(base) not in (torch.optim.Adam, torch.optim.AdamW) or len(base.param_groups) != 1:
        return False
    group = base.param_groups[0]
    if len(group["params"]) != 1 or not group["fused"] or group["amsgrad"] or group["maximize"]:
        return False
    tensor: torch.Tensor = group["params"][0]
    state = base.state.get(tensor)
    if not state or tensor.grad is None or tensor.device.type != "cpu" or not isinstance(group["lr"], float):
        return False
    state["step"].numpy()[...] += 1  # a number on a processor, which torch adds to more slowly
    kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    beta1, beta2 = group["betas"]
    kernel(
        *([tensor], [tensor.grad], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]]),
        **{name: group[name] for name in ("lr", "weight_decay", "eps", "amsgrad", "maximize")},
        beta1=beta1,
        beta2=beta2,
    )
    return True


def without_compiler() -> None:
    """Keep torch's optimisers from importing torch's compiler, 2.4 s of a processor.

    Some of their methods do so on their first call, to tell the compiler that they are not for it. Where nothing is
    compiled they may as well be called as they are. To be called before an optimiser is made.
    """
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        method = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if method is not None and not hasattr(method, "__dynamo_disable"):
            method.__dynamo_disable = method


def _lists(params: ParamsT) -> ParamsT:
    """The same parameters, with a list for each iterator, so that they can be looked at more than once."""
    if isinstance(params, Iterator):
        params = list(params)
    if not isinstance(params, list):
        return params
    return [
        {**entry, "params": list(entry["params"])}
        if isinstance(entry, dict) and isinstance(entry.get("params"), Iterator)
        else entry
        for entry in params
    ]


def _tensors(params: ParamsT) -> list[Any]:
    """The tensors in any of the forms that torch's optimisers take."""
    found: list[Any] = []
    for entry in params:
        inside = entry["params"] if isinstance(entry, dict) else entry[1] if isinstance(entry, tuple) else entry
        found += [inside] if isinstance(inside, torch.Tensor) else list(inside)
    return [entry[1] if isinstance(entry, tuple) else entry for entry in found]


def _fusable(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.device.type in ("cpu", "cuda")

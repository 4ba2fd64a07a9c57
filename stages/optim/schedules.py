"""Learning rates as pure functions of the update number.

`t` counts optimiser updates (not micro-batches), and the first update is number 1.

    noam_rate          Vaswani et al. 2017, "Attention Is All You Need", section 5.3, equation 3
    inverse_sqrt_rate  the same shape with its peak given as a rate
    constant_rate      a ramp, then one rate
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

Schedule = Callable[[int], float]


def noam_rate(t: int, d_model: int, warmup: int, factor: float = 1.0) -> float:
    """`factor · d_model^-0.5 · min(t^-0.5, t · warmup^-1.5)`.

    A linear ramp to `factor · (d_model · warmup)^-0.5` at t = warmup, then a decay with t^-0.5 without a floor.

    Raises:
        ValueError: t, d_model or warmup below 1.
    """
    _at_least_one(t=t, d_model=d_model, warmup=warmup)
    return float(factor * d_model**-0.5 * min(t**-0.5, t * warmup**-1.5))


def inverse_sqrt_rate(t: int, lr: float, warmup: int) -> float:
    """A linear ramp to `lr` at t = warmup, then `lr · sqrt(warmup / t)`.

    Raises:
        ValueError: t or warmup below 1.
    """
    _at_least_one(t=t, warmup=warmup)
    return float(lr * min(t / warmup, (warmup / t) ** 0.5))


def constant_rate(t: int, lr: float, warmup: int) -> float:
    """A linear ramp to `lr` at t = warmup, then `lr`; with warmup = 1 there is no ramp.

    Raises:
        ValueError: t or warmup below 1.
    """
    _at_least_one(t=t, warmup=warmup)
    return float(lr * min(t / warmup, 1.0))


def make_schedule(name: str, *, d_model: int, warmup: int, factor: float, lr: float) -> Schedule:
    """The schedule of that name in params.yaml as a function of the update number alone.

    Raises:
        ValueError: no such schedule.
    """
    schedules: dict[str, Schedule] = {
        "noam": partial(noam_rate, d_model=d_model, warmup=warmup, factor=factor),
        "inverse_sqrt": partial(inverse_sqrt_rate, lr=lr, warmup=warmup),
        "constant": partial(constant_rate, lr=lr, warmup=warmup),
        "none": partial(constant_rate, lr=lr, warmup=1),
    }
    if name not in schedules:
        raise ValueError(f"schedule {name!r}: expected one of {', '.join(schedules)}")
    return schedules[name]


def _at_least_one(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} = {value}: expected a number ≥ 1 (the first update is number 1)")

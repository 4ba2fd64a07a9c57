"""Learning rates as pure functions of the update number.

`t` counts optimiser updates (not micro-batches), and the first update is number 1.

    noam_rate          Vaswani et al. 2017, "Attention Is All You Need", section 5.3, equation 3
    inverse_sqrt_rate  the same shape with its peak given as a rate
    constant_rate      a ramp, then one rate
    cosine_rate        a ramp, then half a cosine (Loshchilov & Hutter 2017, "SGDR", equation 5, without restarts)
    linear_rate        a ramp, then a line
    wsd_rate           a ramp, one rate, then a line at the end: warm-up, stable, decay (Hu et al. 2024, "MiniCPM",
                       section 4; Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed
                       Training Durations", section 3)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

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


def cosine_rate(t: int, lr: float, warmup: int, updates: int, min_lr: float = 0.0) -> float:
    """A linear ramp to `lr` at t = warmup, then half a cosine down to `min_lr` at t = updates.

    Raises:
        ValueError: t, warmup or updates below 1.
    """
    _at_least_one(t=t, warmup=warmup, updates=updates)
    share = (1 - math.cos(math.pi * _left(t, warmup, updates))) / 2
    return _between(lr, min_lr, share, t / warmup)


def linear_rate(t: int, lr: float, warmup: int, updates: int, min_lr: float = 0.0) -> float:
    """A linear ramp to `lr` at t = warmup, then a line down to `min_lr` at t = updates.

    Raises:
        ValueError: t, warmup or updates below 1.
    """
    _at_least_one(t=t, warmup=warmup, updates=updates)
    return _between(lr, min_lr, _left(t, warmup, updates), t / warmup)


def wsd_rate(t: int, lr: float, warmup: int, updates: int, decay_fraction: float = 0.2, min_lr: float = 0.0) -> float:
    """A linear ramp to `lr` at t = warmup, `lr`, then a line down to `min_lr` at t = updates.

    The line takes the last `decay_fraction` of all updates, or as much of it as the ramp leaves.

    Raises:
        ValueError: t, warmup or updates below 1.
    """
    _at_least_one(t=t, warmup=warmup, updates=updates)
    start = max(float(warmup), (1 - decay_fraction) * updates)
    return _between(lr, min_lr, _left(t, start, updates), t / warmup)


def _left(t: int, start: float, end: int) -> float:
    """How much of a fall is still to come: 1 up to `start`, 0 from `end` on, a line between them."""
    return 1.0 if t <= start else max(0.0, (end - t) / (end - start)) if end > start else 0.0


def _between(lr: float, min_lr: float, share: float, ramp: float) -> float:
    """`share` of the way from `min_lr` to `lr`, and on the ramp no more than it allows; never above `lr`."""
    return float(min(lr * min(ramp, 1.0), share * lr + (1 - share) * min_lr))


@dataclass(frozen=True)
class Counting:
    """How a toolkit numbers the k-th update, k from 1, and what it multiplies the rate by.

    Attributes:
        schedules: of ours that it has.
        behind: its number is k less this …
        least: … and at least this; the rate of number 0 is 0.
        scale: multiplies the rate.
        scales_lr: `lr` multiplies it too.
    """

    schedules: tuple[str, ...]
    behind: int = 0
    least: int = 1
    scale: float = 1.0
    scales_lr: bool = False


SCHEDULES = ("noam", "inverse_sqrt", "constant", "cosine", "linear", "wsd", "none")
COUNTINGS = {
    "paper": Counting(SCHEDULES),
    "annotated": Counting(("noam",), behind=1),  # The Annotated Transformer, with torch's LambdaLR
    "tensor2tensor": Counting(("noam",), behind=1, least=0, scale=2.0),  # constant 2 · linear_warmup · rsqrt_decay · …
    "tensor2tensor_legacy": Counting(("noam",), scale=10.0, scales_lr=True),  # learning_rate_decay_scheme noam
    "espnet": Counting(("noam",)),
    "opennmt": Counting(("noam",)),
    "allennlp": Counting(("noam",)),
    "fairseq": Counting(("inverse_sqrt",), behind=1, least=0),
    "transformers": Counting(("inverse_sqrt",), behind=1, least=0),
}


def make_schedule(
    name: str,
    *,
    d_model: int,
    warmup: int,
    factor: float,
    lr: float,
    updates: int | None = None,
    decay_fraction: float = 0.2,
    min_lr: float = 0.0,
    counting: str = "paper",
) -> Schedule:
    """The schedule of that name in params.yaml as a function of the update number alone.

    Args:
        name: one of `SCHEDULES`.
        d_model, factor: of noam.
        warmup: updates of the ramp, of all but none.
        lr: peak rate, of all but noam.
        updates: of the whole run, for those that end with it: cosine, linear, wsd.
        decay_fraction: share of the updates in which wsd falls.
        min_lr: where cosine, linear and wsd end.
        counting: one of `COUNTINGS`, for that schedule.

    Raises:
        ValueError: no such schedule, no such counting of it, or no `updates` where they are needed.
    """
    ramp: dict[str, Any] = {"lr": lr, "warmup": warmup}
    fall = ramp | {"updates": updates or 0, "min_lr": min_lr}
    schedules: dict[str, Schedule] = {
        "noam": partial(noam_rate, d_model=d_model, warmup=warmup, factor=factor),
        "inverse_sqrt": partial(inverse_sqrt_rate, **ramp),
        "constant": partial(constant_rate, **ramp),
        "cosine": partial(cosine_rate, **fall),
        "linear": partial(linear_rate, **fall),
        "wsd": partial(wsd_rate, **fall, decay_fraction=decay_fraction),
        "none": partial(constant_rate, lr=lr, warmup=1),
    }
    if name not in schedules:
        raise ValueError(f"schedule {name!r}: expected one of {', '.join(schedules)}")
    if name in ("cosine", "linear", "wsd") and not updates:
        raise ValueError(f"schedule {name!r}: needs the number of updates of the run")
    counts = [known for known, one in COUNTINGS.items() if name in one.schedules]
    if counting not in counts:
        raise ValueError(f"counting {counting!r}: expected, with schedule {name!r}, one of {', '.join(counts)}")
    way = COUNTINGS[counting]
    scale = way.scale * (lr if way.scales_lr else 1.0)
    plain = (way.behind, scale) == (0, 1.0)
    return schedules[name] if plain else partial(_counted, schedule=schedules[name], way=way, scale=scale)


def _counted(k: int, schedule: Schedule, way: Counting, scale: float) -> float:
    _at_least_one(k=k)
    number = max(k - way.behind, way.least)
    return scale * schedule(number) if number else 0.0


def _at_least_one(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} = {value}: expected a number ≥ 1 (the first update is number 1)")

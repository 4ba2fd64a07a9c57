"""What came of a run or of its replicas: measures with their spread, and which of them diverged.

Replicas are the entries of reports/replicas.json, in the order of their seeds; a single run has one entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stages.analysis.spread import spread

Replica = Mapping[str, Any]

SPACE = "\u202f"  # narrow, does not break: groups of three digits
HUGE = "> 10³⁰⁰"  # beyond what a float holds
TEXTS = {"train": "training text", "valid": "validation text", "test": "test text"}


class Measure(NamedTuple):
    """A measure of one run, with its 95% interval over sentences; or its mean over replicas.

    Of replicas `std` is their standard deviation, and the interval is that of their mean, over seeds.
    """

    value: float | None  # none where it is not finite
    std: float | None
    low: float | None
    high: float | None
    runs: int  # that have a value
    of: int  # all of them


class Behind(NamedTuple):
    """A model that loses to 3-grams: on which text, their nats a token, and by how many, with its 95% interval."""

    split: str
    trigram: float
    nats: float
    low: float | None
    high: float | None


def measure(replicas: Sequence[Replica], split: str, name: str) -> Measure:
    """`name` on the text `split`. What a model of numbers that are not finite predicts counts for nothing."""
    found = [replica[split] for replica in replicas if replica[split]["loss"] is not None]
    values = [measures[name] for measures in found if measures.get(name) is not None]
    if len(replicas) == 1 and values:
        bounds = found[0].get("interval") or {}
        return Measure(values[0], None, bounds.get(f"{name}_low"), bounds.get(f"{name}_high"), 1, 1)
    if not values:
        return Measure(None, None, None, None, 0, len(replicas))
    over = spread(values)
    return Measure(over["mean"], over["std"], over["low"], over["high"], len(values), len(replicas))


def splits(replicas: Sequence[Replica]) -> list[str]:
    """The parts of the corpus that were measured."""
    return [name for name in TEXTS if replicas[0].get(name)]


def headline(replicas: Sequence[Replica]) -> str:
    """The part that counts most: held-out text where there is some."""
    return next(name for name in ("valid", "test", "train") if name in splits(replicas))


def behind_counting(replicas: Sequence[Replica]) -> Behind | None:
    """How far the model loses to counting on the text that counts most; None where it is better or not finite."""
    split = headline(replicas)
    gain = measure(replicas, split, "gain")
    if gain.value is None or gain.value >= 0:
        return None
    trigram = float(replicas[0][split]["baseline"]["trigram"])
    low, high = (None if bound is None else -bound for bound in (gain.high, gain.low))
    return Behind(split, trigram, -gain.value, low, high)


def diverged(replicas: Sequence[Replica]) -> list[Replica]:
    """Those that came to their end before their time."""
    return [replica for replica in replicas if "diverged_at" in replica]


def last_measured(replica: Replica) -> str:
    """What was last measured of one that diverged, in words; empty if nothing was."""
    last = replica.get("last_finite")
    return (
        f"{number(last['loss'], 4)} on the {TEXTS[last['split']]} after update {number(last['step'])}" if last else ""
    )


def number(value: Any, decimals: int | None = None) -> str:
    """A value as a reader wants it: 2700 as `2 700`, a truth as yes or no, nothing as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and decimals is not None:
        return f"{value:.{decimals}f}" if abs(value) < 1e6 else f"{value:.3e}"
    if isinstance(value, int):
        return f"{value:,}".replace(",", SPACE)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def perplexity(value: float | None) -> str:
    """Four digits, or all before the point; missing is what overflowed."""
    if value is None:
        return HUGE
    if value >= 1e6:
        return f"{value:.3e}"
    return f"{value:.4g}" if value < 1e4 else number(round(value))


def percent(value: float | None) -> str:
    """A share in percent, with one decimal."""
    return "–" if value is None else f"{100 * value:.1f} %"

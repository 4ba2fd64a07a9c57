"""The last run in a few lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.analysis.outcome import (
    TEXTS,
    Measure,
    Replica,
    behind_counting,
    diverged,
    last_measured,
    measure,
    number,
    percent,
    perplexity,
    splits,
)

_LISTED = 8  # diverged replicas that are named


def summary(
    metrics: Mapping[str, Any], replicas: Sequence[Replica], prompts: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Lines on what reports/metrics.json, reports/replicas.json and data/evaluation/next_words.json hold."""
    yield f"measured on  {metrics['measured_on']}"
    for name in splits(replicas):
        first, *others = _loss(replicas, name)
        yield f"{name + ' loss':<11}  {first}"
        yield from (f"{'':<11}  {line}" for line in others)
    yield from _divergence(replicas)
    yield from _counting(replicas)
    yield from _truth(replicas)
    for prompt in prompts:
        if prompt["tokens"] == ["[bos]"] and prompt["next"]:
            best = prompt["next"][0]
            who = f" (seed {replicas[0]['seed']})" if len(replicas) > 1 else ""
            known = best["probability"] is not None
            yield f"after [bos]  {best['word']} ({best['probability']:.2f}){who}" if known else f"after [bos]  –{who}"


def _loss(replicas: Sequence[Replica], name: str) -> list[str]:
    """Loss, perplexity, bits a character and excess on one text."""
    loss = measure(replicas, name, "loss")
    if loss.value is None:
        return ["not finite" if loss.of == 1 else f"not finite for any of {loss.of} seeds"]
    more = [f"perplexity {perplexity(measure(replicas, name, 'perplexity').value)}"]
    bits = measure(replicas, name, "bits_per_character").value
    if bits is not None:
        more.append(f"{number(bits, 4)} bits/character")
    excess = measure(replicas, name, "excess").value
    if excess is not None:
        more.append(f"{number(excess, 4)} above the floor of this text")
    if loss.of == 1:
        if loss.low is not None and loss.high is not None:
            more.insert(0, f"95% interval {number(loss.low, 4)} to {number(loss.high, 4)}")
        return [f"{number(loss.value, 4)} nats/token ({', '.join(more)})"]
    return [_over_seeds(loss), ", ".join(more)]


def _over_seeds(loss: Measure) -> str:
    """The mean loss, how far the seeds lie apart, and how well the mean is known."""
    who = f"{loss.of} seeds" if loss.runs == loss.of else f"{loss.runs} of {loss.of} seeds"
    if loss.std is None:
        return f"{number(loss.value, 4)} nats/token ({who})"
    interval = f"95% interval of the mean {number(loss.low, 4)} to {number(loss.high, 4)}"
    found = f"{number(loss.value, 4)} ± {number(loss.std, 4)} nats/token"
    return f"{found} (mean ± standard deviation of {who}; {interval})"


def _divergence(replicas: Sequence[Replica]) -> Iterator[str]:
    gone = diverged(replicas)
    if not gone:
        return
    if len(replicas) == 1:
        last = last_measured(gone[0])
        yield f"diverged     at update {gone[0]['diverged_at']}" + (f", last measured loss {last}" if last else "")
        return
    listed = ", ".join(f"seed {one['seed']} at update {one['diverged_at']}" for one in gone[:_LISTED])
    more = f" and {len(gone) - _LISTED} more" if len(gone) > _LISTED else ""
    yield f"diverged     {len(gone)} of {len(replicas)}: {listed}{more}"


def _counting(replicas: Sequence[Replica]) -> Iterator[str]:
    behind = behind_counting(replicas)
    if behind:
        yield (
            f"counting     is better: 3-grams have {number(behind.trigram, 4)} nats/token on the "
            f"{TEXTS[behind.split]}, {number(behind.nats, 4)} less than the model"
        )


def _truth(replicas: Sequence[Replica]) -> Iterator[str]:
    if "truth" in replicas[0]:
        excess, number_agrees, gender_agrees = (
            measure(replicas, "truth", name).value for name in ("excess", "agreement_number", "agreement_gender")
        )
        yield (
            f"grammar      {number(excess, 4)} nats/token above it, on sentences drawn anew; "
            f"number agrees in {percent(number_agrees)}, gender in {percent(gender_agrees)}"
        )

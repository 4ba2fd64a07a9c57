"""The tables of the report, as rows of words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stages.analysis.outcome import (
    Measure,
    Replica,
    headline,
    last_measured,
    measure,
    number,
    percent,
    perplexity,
    splits,
)

Cell = tuple[str, str]  # a value, and its interval or nothing
_FEATURES = {"number": "verb and subject, number", "gender": "adjective and subject, gender"}
_BETWEEN = {
    "all": "all places",
    "distance": "words between",
    "attractors": "nouns of the other form between",
}


def nats(value: float | None) -> str:
    """Four decimals."""
    return number(value, 4)


def spread(found: Measure, *, share: bool = False) -> str:
    """Interval and, over seeds, standard deviation in words, of a `share` in percent."""
    if found.value is None:
        return ""
    if found.of == 1:
        bounds = interval(found, share=share)
        return bounds and f"95%\xa0interval {bounds}"
    who = "" if found.runs == found.of else f"{number(found.runs)} of {number(found.of)} seeds"
    if found.std is None or found.low is None or found.high is None:
        return who
    std = f"{100 * found.std:.1f}\xa0%" if share else f"{found.std:.4g}"
    return f"{who}{': ' if who else ''}±\xa0{std}, 95%\xa0interval {interval(found, share=share)}"


def interval(found: Measure, *, share: bool = False) -> str:
    """The bounds in words; nothing where there are none."""
    if found.low is None or found.high is None:
        return ""
    low, high = (f"{100 * value:.1f}" if share else f"{value:.4g}" for value in (found.low, found.high))
    to = "\xa0to\xa0" if len(low + high) <= 12 else " to\xa0"  # one line of a tile, if it fits
    return f"{low}{to}{high}" + ("\xa0%" if share else "")


def results(replicas: list[dict[str, Any]]) -> list[tuple[str, list[Cell]]]:
    """The table of results: each measure with its value on each text and the interval of that."""
    names = splits(replicas)
    first = [replicas[0][name] for name in names]
    shown: list[tuple[str, str, Callable[[float], str]]] = [
        ("loss (nats per token)", "loss", nats),
        ("bits per character", "bits_per_character", nats),
        ("bits per byte", "bits_per_byte", nats),
        ("accuracy", "accuracy", percent),
        ("accuracy, one of five", "accuracy_top5", percent),
        ("calibration error", "ece", percent),
        ("excess over the lowest possible loss", "excess", nats),
    ]
    rows = []
    for title, key, words in shown:
        found = [measure(replicas, name, key) for name in names]
        rows.append(
            (
                title,
                [("–" if at.value is None else words(at.value), interval(at, share=words is percent)) for at in found],
            )
        )
    confused = [(measure(replicas, name, "perplexity"), measure(replicas, name, "loss")) for name in names]
    cells = [("–" if loss.value is None else perplexity(at.value), interval(at)) for at, loss in confused]
    rows.insert(1, ("perplexity", cells))
    if len(replicas) > 1:
        deviations = [(nats(measure(replicas, name, "loss").std), "") for name in names]
        rows.insert(1, ("standard deviation of the loss", deviations))
    rows += [
        ("lowest possible loss", [(nats(one.get("floor")), "") for one in first]),
        ("tokens", [(number(one["tokens"]), "") for one in first]),
        ("sentences", [(number(one["sentences"]), "") for one in first]),
        ("unknown tokens", [(percent(one["unknown_share"]), "") for one in first]),
    ]
    return rows


def counting(replicas: list[dict[str, Any]]) -> list[list[str]]:
    """A row a text: nats a token of each baseline and of the model, and by how many the model is better."""
    rows = []
    for name in splits(replicas):
        baseline = replicas[0][name].get("baseline") or {}
        gain = measure(replicas, name, "gain")
        bounds = interval(gain)
        rows.append(
            [
                name,
                *(nats(baseline.get(kind)) for kind in ("uniform", "unigram", "trigram")),
                nats(measure(replicas, name, "loss").value),
                nats(gain.value) + (f" ({bounds})" if bounds else ""),
            ]
        )
    return rows


def replica_columns(replicas: list[dict[str, Any]]) -> list[str]:
    split = headline(replicas)
    losses = [f"loss, {name}" for name in splits(replicas)]
    return ["seed", *losses, "excess, train", f"perplexity, {split}", f"accuracy, {split}", "diverged at"]


def replica_row(replica: Replica, replicas: list[dict[str, Any]]) -> list[str]:
    one = replica[headline(replicas)]
    lost = one["loss"] is None
    last = last_measured(replica)
    return [
        str(replica["seed"]),
        *(nats(replica[name]["loss"]) for name in splits(replicas)),
        nats(replica["train"].get("excess")),
        "–" if lost else perplexity(one["perplexity"]),
        "–" if lost else percent(one["accuracy"]),
        number(replica.get("diverged_at")) + (f", last measured {last}" if last else ""),
    ]


def truth(replicas: list[dict[str, Any]]) -> list[Cell]:
    """The model against the grammar of its corpus: a name and a value a row; none for other corpora."""
    if "truth" not in replicas[0]:
        return []
    first = replicas[0]["truth"]
    loss, excess, error = (measure(replicas, "truth", name) for name in ("loss", "excess", "excess_error"))
    several = len(replicas) > 1
    known = f" ({interval(excess)})" if interval(excess) else ""
    if not several and error.value is not None:
        known = f" ± {nats(error.value)}"
    rows = [
        ("loss of the model (nats per token)", nats(loss.value)),
        ("loss of the grammar on the same tokens", nats(first["true_loss"])),
        (
            f"excess{' (mean, 95% interval over seeds)' if several else ' ± its standard error'}",
            nats(excess.value) + known,
        ),
        ("entropy of the grammar", nats(first["entropy"])),
    ]
    for feature, title in _FEATURES.items():
        rows.append((f"agreement of {title}", percent(measure(replicas, "truth", f"agreement_{feature}").value)))
    return [*rows, ("sentences", number(first["sentences"])), ("tokens", number(first["tokens"]))]


def agreement(table: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each group of places of agreement: what agrees, how far off, how many, how many right."""
    rows = []
    for row in table:
        value = "" if row["value"] is None else f": {row['value']}"
        share = f"{percent(row['accuracy'])} ({100 * row['low']:.1f} to {100 * row['high']:.1f} %)"
        rows.append([_FEATURES[row["feature"]], f"{_BETWEEN[row['by']]}{value}", number(row["items"]), share])
    return rows

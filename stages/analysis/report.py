"""One page that tells a run: numbers, pictures, words, parameters, in a single file that needs no network.

Pictures are inside the page as SVG. Of the pictures of single heads, at most `MAX_HEADS` are; the others lie beside it
in reports/figures, and the overview of each prompt shows all heads in any case.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from stages.analysis.figures import MAX_BARS
from stages.params import Params

MAX_HEADS = 48
_TEMPLATE = "report.html.j2"
_SPACE = "\u202f"  # narrow, does not break: groups of three digits
_HUGE = "> 10³⁰⁰"  # beyond what a float holds


class Run(NamedTuple):
    """What the earlier stages left in files."""

    config: dict[str, Any]  # data/model/config.json
    metrics: dict[str, Any]  # reports/metrics.json
    corpus: dict[str, Any]  # reports/corpus.json
    next_words: list[dict[str, Any]]  # data/evaluation/next_words.json
    last_rate: float  # of the last update


class Tile(NamedTuple):
    """A number with its name and what it refers to."""

    name: str
    value: str
    note: str


def page(run: Run, pictures: Mapping[str, bytes]) -> str:
    """The report as HTML.

    `pictures` holds SVG files by name: loss, rate, gradient-norm, noam-rate; for prompt i next-words-p{i}, and where it
    has more than one token attention-p{i} and attention-p{i}-L{layer}H{head}.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, probability=probability, source=_source)
    shown, left_out = _heads(pictures)
    return environment.get_template(_TEMPLATE).render(
        summary=_summary(run.config["training"]),
        tiles=tiles(run),
        warning=warmup_warning(run),
        measured_on=run.metrics["measured_on"],
        splits=_splits(run.metrics),
        rows=_MEASURES,
        corpus=_flat(run.corpus),
        prompts=[_prompt(i, entry, pictures, shown) for i, entry in enumerate(run.next_words)],
        left_out=left_out,
        max_heads=MAX_HEADS,
        pictures=pictures,
        training=_described(run.config["training"]),
        model=_described(run.config["model"]),
        vocab_md5=run.config["vocab_md5"],
    )


def tiles(run: Run) -> list[Tile]:
    """The numbers at the top: of the held-out text where there is some, else of the training text."""
    splits = _splits(run.metrics)
    name = next(name for name in ("valid", "test", "train") if name in splits)
    measured = splits[name]
    where = {"valid": "validation text", "test": "test text", "train": "training text"}[name]
    found = [
        Tile("Loss", number(measured["loss"], 4), f"nats per token, {where}"),
        Tile("Perplexity", perplexity(measured["perplexity"]), where),
        Tile("Accuracy", f"{100 * measured['accuracy']:.1f} %", f"of next words, {where}"),
    ]
    train = splits.get("train", {})
    if train.get("excess") is not None:
        note = f"nats per token over the lowest possible loss on the training text, {train['floor']:.4f}"
        found.append(Tile("Excess", number(train["excess"], 4), note))
    else:
        found.append(Tile("Excess", "–", "the corpus is too large for its exact floor"))
    found.append(Tile("Updates", number(run.config["updates"]), f"{number(run.config['training']['epochs'])} epochs"))
    found.append(Tile("Parameters", number(run.config["parameters"]), "numbers in the model"))
    return found


def warmup_warning(run: Run) -> str:
    """One sentence where the run ended within its warm-up, else nothing."""
    training, updates = run.config["training"], run.config["updates"]
    if training["schedule"] == "none" or training["warmup"] < updates:
        return ""
    return (
        f"The warm-up of {number(training['warmup'])} updates is not shorter than the run of {number(updates)}: "
        f"the learning rate was still rising at the end, where it was {run.last_rate:.3g}. "
        "A shorter warm-up, say a tenth of the run, would have used its full range."
    )


def number(value: Any, decimals: int | None = None) -> str:
    """A value as a reader wants it: 2700 as `2 700`, a truth as yes or no, nothing as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and decimals is not None:
        return f"{value:.{decimals}f}"
    if isinstance(value, int):
        return f"{value:,}".replace(",", _SPACE)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def perplexity(value: float | None) -> str:
    """Four digits; missing is what overflowed."""
    if value is None:
        return _HUGE
    return f"{value:.4g}" if value < 1e6 else f"{value:.3e}"


def probability(value: float) -> str:
    """Four decimals; what they cannot show is told from zero."""
    return "< 0.0001" if 0 < value < 0.00005 else f"{value:.4f}"


_MEASURES = (
    ("loss", "loss (nats per token)", lambda value: number(value, 4)),
    ("perplexity", "perplexity", perplexity),
    ("accuracy", "accuracy", lambda value: f"{100 * value:.1f} %"),
    ("floor", "lowest possible loss", lambda value: number(value, 4)),
    ("excess", "excess over it", lambda value: number(value, 4)),
    ("tokens", "tokens", number),
    ("sentences", "sentences", number),
    ("unknown_share", "unknown words", lambda value: f"{100 * value:.1f} %"),
)


def _splits(metrics: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The parts of the corpus that were measured."""
    return {name: metrics[name] for name in ("train", "valid", "test") if metrics.get(name)}


def _summary(training: dict[str, Any]) -> str:
    schedule = training["schedule"]
    ramp = f", warm-up {number(training['warmup'])}" if schedule != "none" else ""
    return (
        f"{training['layers']} × {training['n_heads']} heads (layers × heads), d_model {training['d_model']}, "
        f"{training['optimizer']} with schedule {schedule}{ramp}, seed {training['seed']}"
    )


def _flat(account: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested counts as one list: `sentences_by_split` of `train` as `sentences by split: train`."""
    found: dict[str, Any] = {}
    for key, value in account.items():
        name = path + key.replace("_", " ")
        found |= _flat(value, f"{name}: ") if isinstance(value, dict) else {name: value}
    return found


def _prompt(index: int, entry: dict[str, Any], pictures: Mapping[str, bytes], shown: set[str]) -> dict[str, Any]:
    prefix = f"attention-p{index}-"
    heads = [name for name in pictures if name.startswith(prefix)]
    return {
        "index": index,
        "title": " ".join(entry["tokens"]),
        "tokens": len(entry["tokens"]),
        "unknown": entry["unknown"],
        "next": entry["next"][:MAX_BARS],
        "more": max(0, len(entry["next"]) - MAX_BARS),
        "heads": [(name, name.removeprefix(prefix)) for name in heads if name in shown],
    }


def _heads(pictures: Mapping[str, bytes]) -> tuple[set[str], int]:
    """The pictures of single heads that go into the page, and the number of those that do not."""
    names = [name for name in pictures if name.startswith("attention-") and name.count("-") == 2]
    return set(names[:MAX_HEADS]), max(0, len(names) - MAX_HEADS)


def _described(values: dict[str, Any]) -> list[tuple[str, Any, str]]:
    """Key, value and meaning of each entry."""
    fields = Params.model_fields
    return [(key, value, (fields[key].description or "") if key in fields else "") for key, value in values.items()]


def _source(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")

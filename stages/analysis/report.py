"""One page that tells a run: numbers, pictures, words, parameters, in a single file that needs no network.

Pictures are inside the page as SVG. Of the pictures of single heads, at most `MAX_HEADS` are; the others lie beside it
in reports/figures, and the overview of each prompt shows all heads in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stages.analysis import tables, template
from stages.analysis.figures import MAX_BARS
from stages.analysis.outcome import (
    TEXTS,
    Measure,
    behind_counting,
    diverged,
    headline,
    last_measured,
    measure,
    number,
    percent,
    perplexity,
    splits,
)
from stages.params import Params

MAX_HEADS = 48
MAX_REPLICAS = 100  # rows of their table
_LISTED = 8  # diverged replicas in the warning; the table has them all
_TEMPLATE = "report.html.j2"


class Run(NamedTuple):
    """What the earlier stages left in files."""

    config: dict[str, Any]  # data/model/config.json, of the first replica
    replicas: list[dict[str, Any]]  # reports/replicas.json, one entry for a single run
    metrics: dict[str, Any]  # reports/metrics.json
    corpus: dict[str, Any]  # reports/corpus.json
    agreement: list[dict[str, Any]]  # of data/evaluation/truth.json; empty unless the corpus is of the grammar
    next_words: list[dict[str, Any]]  # data/evaluation/next_words.json
    updates: int  # of the replica that got furthest
    last_rate: float | None  # of the last of them


class Tile(NamedTuple):
    """A number with its name and what it refers to."""

    name: str
    value: str
    note: str
    spread: str = ""  # over replicas


def page(run: Run, pictures: Mapping[str, bytes]) -> str:
    """The report as HTML.

    `pictures` holds SVG files by name: loss, rate, gradient-norm, noam-rate, of several replicas replicas; for prompt i
    next-words-p{i}, and where it has more than one token attention-p{i}, attention-p{i}-L{layer}H{head} and heads-p{i};
    where models were kept on the way attention-over-training-p{i}.
    """
    shown, left_out = _heads(pictures)
    return template.rendered(
        _TEMPLATE,
        summary=_summary(run),
        seeds=[replica["seed"] for replica in run.replicas],
        tiles=tiles(run),
        warnings=warnings(run),
        measured_on=run.metrics["measured_on"],
        splits=splits(run.replicas),
        rows=tables.results(run.replicas),
        counting=tables.counting(run.replicas),
        counted=run.metrics["counted_tokens"],
        context=run.metrics["context"],
        stride=run.metrics["stride"],
        truth=tables.truth(run.replicas),
        agreement=tables.agreement(run.agreement),
        replica_columns=tables.replica_columns(run.replicas),
        replica_rows=[tables.replica_row(replica, run.replicas) for replica in run.replicas[:MAX_REPLICAS]],
        more_replicas=max(0, len(run.replicas) - MAX_REPLICAS),
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
    split = headline(run.replicas)
    where = TEXTS[split]
    loss, accuracy, excess = (
        measure(run.replicas, *key) for key in ((split, "loss"), (split, "accuracy"), ("train", "excess"))
    )
    confused = measure(run.replicas, split, "perplexity")
    found = [
        Tile("Loss", number(loss.value, 4), f"nats per token, {where}{_last_finite(run, loss)}", tables.spread(loss)),
        Tile("Perplexity", "–" if loss.value is None else perplexity(confused.value), where,
             tables.spread(confused)),
        Tile("Accuracy", percent(accuracy.value), f"of next words, {where}", tables.spread(accuracy, share=True)),
    ]  # fmt: skip
    floor = run.replicas[0]["train"].get("floor")
    if floor is not None:
        note = f"nats per token over the lowest possible loss on the training text, {floor:.4f}"
        found.append(Tile("Excess", number(excess.value, 4), note, tables.spread(excess)))
    else:
        found.append(Tile("Excess", "–", "the corpus is too large for its exact floor"))
    found.append(Tile("Updates", number(run.updates), _extent(run)))
    found.append(Tile("Parameters", number(run.config["parameters"]), "numbers in the model"))
    return found


def _last_finite(run: Run, loss: Measure) -> str:
    """What a run that diverged had last, where there is no number now."""
    if loss.value is not None:
        return ""
    if loss.of > 1:
        return "; not finite for any seed"
    last = last_measured(run.replicas[0])
    return f"; not finite, last measured {last}" if last else "; not finite"


def _extent(run: Run) -> str:
    """How long the training was."""
    training, gone = run.config["training"], diverged(run.replicas)
    epochs = f"{number(training['epochs'])} epochs"
    if gone and len(run.replicas) == 1:
        return f"then it diverged; {epochs} were asked for"
    if gone:
        return f"of the seed that got furthest; {epochs} were asked for"
    return f"max_updates, within {epochs}" if run.updates == training.get("max_updates") else epochs


def warnings(run: Run) -> list[tuple[str, str]]:
    """What a reader must know before the numbers: what it is, and a sentence or two on it."""
    found = [
        divergence_warning(run),
        counting_warning(run),
        ("The run ended within its warm-up.", warmup_warning(run)),
    ]
    return [warning for warning in found if warning and warning[1]]


def divergence_warning(run: Run) -> tuple[str, str] | None:
    """Where the run or some of its replicas diverged, what that means here, and what helps."""
    gone, advice = diverged(run.replicas), _advice(run.config["training"])
    if not gone:
        return None
    if len(run.replicas) == 1:
        done = f"the {number(run.updates)} updates before" if run.updates > 1 else "the one update before"
        kept = f"Weights and curves are those of {done}." if run.updates else "No update was made."
        last = last_measured(gone[0])
        measured = f" Last measured: loss {last}." if last else ""
        title = f"Diverged at update {number(gone[0]['diverged_at'])}:"
        return title, f"the loss or the gradient was no longer finite, and training stopped. {kept}{measured} {advice}"
    listed = [f"seed {one['seed']} at update {number(one['diverged_at'])}" for one in gone[:_LISTED]]
    more = f" and {number(len(gone) - _LISTED)} more" if len(gone) > _LISTED else ""
    return (
        f"{number(len(gone))} of {number(len(run.replicas))} replicas diverged:",
        f"{', '.join(listed)}{more}. The loss or the gradient was no longer finite there. Such a replica is in the "
        "means of the curves up to its end, and in those of the results if its last weights have a finite loss. "
        + advice,
    )


def counting_warning(run: Run) -> tuple[str, str] | None:
    """Where counting three words in a row predicts better than the model."""
    behind = behind_counting(run.replicas)
    if behind is None:
        return None
    interval = f" (95% interval {behind.low:.4g} to {behind.high:.4g})" if behind.low and behind.high else ""
    return (
        "The model loses to counting.",
        f"On the {TEXTS[behind.split]} a Kneser-Ney 3-gram of the same training text has "
        f"{number(behind.trigram, 4)} nats per token, {number(behind.nats, 4)} less than the model{interval}.",
    )


def _advice(training: dict[str, Any]) -> str:
    """What makes a run like this one hold."""
    noam, ramp = training["schedule"] == "noam", training["schedule"] != "none"
    lower = (
        ["factor" if noam else "lr"] + (["decay"] if training["decay"] else []) + (["clip"] if training["clip"] else [])
    )
    steps = (
        [f"lower {' or '.join(lower)}"]
        + (["raise warmup"] if ramp else [])
        + ([] if training["clip"] else ["set clip"])
    )
    return f"What helps: {', '.join(steps)}."


def warmup_warning(run: Run) -> str:
    """One sentence where the run ended within its warm-up, and not because it diverged; else nothing."""
    training, updates = run.config["training"], run.updates
    if training["schedule"] == "none" or training["warmup"] < updates or run.last_rate is None:
        return ""
    if len(diverged(run.replicas)) == len(run.replicas):
        return ""
    return (
        f"The warm-up of {number(training['warmup'])} updates is not shorter than the run of {number(updates)}: "
        f"the learning rate was still rising at the end, where it was {run.last_rate:.3g}. "
        "A shorter warm-up, say a tenth of the run, would have used its full range."
    )


def _summary(run: Run) -> str:
    training, seeds = run.config["training"], [replica["seed"] for replica in run.replicas]
    schedule = training["schedule"]
    ramp = f", warm-up {number(training['warmup'])}" if schedule != "none" else ""
    who = f"seed {training['seed']}" if len(seeds) == 1 else f"{number(len(seeds))} seeds, {seeds[0]} to {seeds[-1]}"
    return (
        f"{training['layers']} × {training['n_heads']} heads (layers × heads), d_model {training['d_model']}, "
        f"{training['optimizer']} with schedule {schedule}{ramp}, {who}"
    )


def _flat(account: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested counts as one list: `sentences_by_split` of `train` as `sentences by split: train`."""
    found: dict[str, Any] = {}
    for key, value in account.items():
        name = path + key.replace("_", " ")
        if key == "files":
            value = {one.get("file", str(i)): one for i, one in enumerate(value)}
        elif isinstance(value, list):
            value = ", ".join(map(str, value)) or "none"
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
        "on_the_way": f"attention-over-training-p{index}" in pictures,
    }


def _heads(pictures: Mapping[str, bytes]) -> tuple[set[str], int]:
    """The pictures of single heads that go into the page, and the number of those that do not."""
    names = [name for name in pictures if name.startswith("attention-") and name.count("-") == 2]
    return set(names[:MAX_HEADS]), max(0, len(names) - MAX_HEADS)


def _described(values: dict[str, Any]) -> list[tuple[str, Any, str]]:
    """Key, value and meaning of each entry."""
    fields = Params.model_fields
    return [(key, value, (fields[key].description or "") if key in fields else "") for key, value in values.items()]

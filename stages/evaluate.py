"""A trained model → its measures on each split, next words and attention for the prompts; of replicas, their spread.

Run by `dvc repro`; by hand: `python -m stages.evaluate`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch

from stages import files, numerics, paths
from stages.analysis.calibration import reliability
from stages.analysis.floor import prefix_tree_floor
from stages.analysis.measures import MEASURES, Yardstick, measures
from stages.analysis.ngrams import Counts
from stages.analysis.spread import spread
from stages.errors import ArtifactError, ParamError
from stages.model.predict import Predictor
from stages.model.storage import load_model
from stages.params import EvaluateParams
from stages.stage import Stage, run
from stages.text.reading import read_units
from stages.training.batches import Sentences
from stages.training.scoring import Score, Targets, score

_FLOOR_TOKENS = 2_000_000  # above, the prefix tree takes more memory than its answer is worth
_AVERAGED = (*MEASURES, "excess")


class Text(NamedTuple):
    """A split, and what is scored of it."""

    sentences: Sentences
    targets: Targets
    yardstick: Yardstick


def main() -> None:
    stage = Stage("evaluate", EvaluateParams)
    params = stage.params
    numerics.set_numerics(params.numerics)

    predictor = Predictor.load(paths.MODEL, paths.VOCAB / "vocab.json")
    context = check_stride(predictor.window, params.stride)
    counts = Counts(Sentences.load(paths.VOCAB / "train.npy").ids, len(predictor.vocabulary))
    texts = load_texts(counts, params.train_sample)
    floor = lowest_possible(texts["train"])

    replicas: list[dict[str, Any]] = []
    first: dict[str, Score] = {}
    for about, scores in score_replicas(texts, context, params):
        replicas.append(measure_replica(about, scores, texts, floor, params.resamples))
        first = first or scores  # what is shown beyond numbers is of the first of them
    metrics = {
        "measured_on": measured_on(texts),
        "context": context,
        "stride": params.stride or context,
        "counted_tokens": counts.tokens,
        **summary(replicas),
    }
    answers = [predictor.explain(prompt, params.top_k) for prompt in params.prompts]

    stage.check_inputs()
    files.write_json(paths.METRICS, metrics)
    files.write_json(paths.REPLICAS, replicas)
    with files.replacing_folder(paths.EVALUATION) as folder:
        files.write_json(folder / "next_words.json", [prediction.to_dict() for prediction, _ in answers])
        files.write_json(folder / "calibration.json", {name: reliable(found) for name, found in first.items()})
        attention = {f"prompt-{i}": weights for i, (_, weights) in enumerate(answers)}
        safetensors.torch.save_file(attention, folder / "attention.safetensors")
        files.as_usual(folder / "attention.safetensors")
    for prediction, _ in answers:
        if prediction.unknown:
            stage.warn(f"prompt {prediction.prompt!r}: unknown words {', '.join(prediction.unknown)} read as [unk]")
    loss = metrics["train"]["loss"]
    found = "not finite" if loss is None else f"{loss:.4f} nats/token"
    stage.say(f"train loss {found}, {metrics['measured_on']}")


def check_stride(window: int, stride: int) -> int:
    """The tokens that the model reads at once.

    Raises:
        ParamError: windows that move on by `stride` would leave words out.
    """
    if stride > window:
        raise ParamError("stride", f" = {stride}: expected at most {window}, the tokens that the model reads at once")
    return window


def load_texts(counts: Counts, train_sample: int) -> dict[str, Text]:
    """The splits that have sentences, of the training text a sample.

    Raises:
        ArtifactError: missing, damaged, or text and ids that do not belong together.
    """
    found = {}
    for name in paths.SPLITS:
        sentences = Sentences.load(paths.VOCAB / f"{name}.npy")
        if not len(sentences):
            continue
        targets = Targets.spread_out(sentences, train_sample) if name == "train" else Targets.of(sentences)
        file = paths.PREPARED / f"{name}.txt"
        try:
            yardstick = Yardstick.of(sentences, targets, read_units(file), counts)
        except ValueError as error:
            raise ArtifactError(file, f"{error} in data/vocab; `dvc repro -f` makes them anew") from None
        found[name] = Text(sentences, targets, yardstick)
    return found


def replica_folders() -> list[Path]:
    """The model of each replica, the first of which is the model as such; in the order of their seeds."""
    others = [folder.parent for folder in (paths.MODEL / "replicas").glob("*/config.json")]
    return [paths.MODEL, *sorted(others, key=lambda folder: int(folder.name))]


def lowest_possible(text: Text) -> float | None:
    """The floor of the training text where all of it is scored: of a sample, a model that has read all knows less."""
    whole = len(text.targets) == text.sentences.targets
    return prefix_tree_floor(text.sentences.ids.tolist()) if whole and len(text.targets) <= _FLOOR_TOKENS else None


def measured_on(texts: Mapping[str, Text]) -> str:
    held_out = [name for name in texts if name != "train"]
    scored, whole = len(texts["train"].targets), texts["train"].sentences.targets
    sample = "" if scored == whole else f"a sample of {scored} of the {whole} tokens of the "
    if held_out:
        return f"{sample}training text and held-out text ({', '.join(held_out)})"
    return f"{sample}training text (no held-out text: valid_fraction and test_fraction are 0)"


def score_replicas(
    texts: Mapping[str, Text], context: int, params: EvaluateParams
) -> Iterator[tuple[dict[str, Any], dict[str, Score]]]:
    """What is known of each model, and its scores."""
    for folder in replica_folders():
        model, about = load_model(folder)
        yield (
            about,
            {
                name: score(
                    model,
                    text.sentences,
                    targets=text.targets,
                    max_length=context,
                    stride=params.stride,
                    threads=params.threads,
                )
                for name, text in texts.items()
            },
        )


def measure_replica(
    about: Mapping[str, Any],
    scores: Mapping[str, Score],
    texts: Mapping[str, Text],
    floor: float | None,
    resamples: int,
) -> dict[str, Any]:
    """Seed and measures of one model; of one that diverged, where, and what was last measured before."""
    ended = {key: about[key] for key in ("diverged_at", "last_finite") if key in about}
    found: dict[str, Any] = {name: measures(scores[name], texts[name].yardstick, resamples) for name in texts}
    if floor is not None:
        loss = found["train"]["loss"]
        found["train"] |= {"floor": floor, "excess": None if loss is None else loss - floor}
    return {"seed": about["training"]["seed"], **ended, **found}


def reliable(found: Score) -> list[dict[str, Any]]:
    """The table of the reliability plot; empty where the model's numbers are not finite."""
    return reliability(found.confidence_N, found.correct_N) if math.isfinite(found.loss) else []


def summary(replicas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What reports/metrics.json says: of one replica its measures, of several their means and the loss's spread.

    A measure that is null for a replica has no part in the mean; `replicas` and `diverged` count. `loss_low` and
    `loss_high` are bounds of the mean over seeds. Those over the sentences of a single run, another thing, are
    `interval.loss_low` and `interval.loss_high`; reports/replicas.json has them for each measure of each replica.
    """
    if len(replicas) == 1:
        (one,) = replicas
        found = {key: value for key, value in one.items() if key != "seed"}
        for split in (name for name in paths.SPLITS if name in one):
            kept = {key: (one[split]["interval"] or {}).get(key) for key in ("loss_low", "loss_high")}
            found[split] = one[split] | {"interval": kept}
        return found
    found = {
        "replicas": len(replicas),
        "diverged": sum("diverged_at" in replica for replica in replicas),
    }
    for split in (name for name in paths.SPLITS if name in replicas[0]):
        found[split] = {}
        for name, value in replicas[0][split].items():
            if name == "interval":
                continue
            if name in _AVERAGED:
                values = [replica[split][name] for replica in replicas if replica[split][name] is not None]
                over = spread(values) if values else dict.fromkeys(("mean", "std", "low", "high"))
                found[split][name] = over["mean"]
                if name == "loss":
                    found[split] |= {f"loss_{bound}": over[bound] for bound in ("std", "low", "high")}
            else:
                found[split][name] = value
    return found


if __name__ == "__main__":
    run(main)

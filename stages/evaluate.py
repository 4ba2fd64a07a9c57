"""A trained model → its metrics on each split, next words and attention for the prompts; of replicas, their spread.

Run by `dvc repro`; by hand: `python -m stages.evaluate`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch

from stages import files, numerics, paths
from stages.analysis.floor import prefix_tree_floor
from stages.analysis.spread import spread
from stages.model.language_model import LanguageModel
from stages.model.predict import Predictor
from stages.model.storage import load_model
from stages.params import EvaluateParams
from stages.stage import Stage, run
from stages.training.batches import Sentences
from stages.training.scoring import Score, score

_FLOOR_TOKENS = 2_000_000  # above, the prefix tree takes more memory than its answer is worth


def main() -> None:
    stage = Stage("evaluate", EvaluateParams)
    params = stage.params
    numerics.set_numerics(params.numerics)

    predictor = Predictor.load(paths.MODEL, paths.VOCAB / "vocab.json")
    splits = {name: Sentences.load(paths.VOCAB / f"{name}.npy") for name in paths.SPLITS}

    replicas = [measure_replica(folder, splits, params.threads) for folder in replica_folders()]
    metrics = {"measured_on": measured_on(splits), **summary(replicas)}
    answers = [predictor.explain(prompt, params.top_k) for prompt in params.prompts]

    stage.check_inputs()
    files.write_json(paths.METRICS, metrics)
    files.write_json(paths.REPLICAS, replicas)
    with files.replacing_folder(paths.EVALUATION) as folder:
        files.write_json(folder / "next_words.json", [prediction.to_dict() for prediction, _ in answers])
        attention = {f"prompt-{i}": weights for i, (_, weights) in enumerate(answers)}
        safetensors.torch.save_file(attention, folder / "attention.safetensors")
        files.as_usual(folder / "attention.safetensors")
    for prediction, _ in answers:
        if prediction.unknown:
            stage.warn(f"prompt {prediction.prompt!r}: unknown words {', '.join(prediction.unknown)} read as [unk]")
    loss = metrics["train"]["loss"]
    found = "not finite" if loss is None else f"{loss:.4f} nats/token"
    stage.say(f"train loss {found}, {metrics['measured_on']}")


def replica_folders() -> list[Path]:
    """The model of each replica, the first of which is the model as such; in the order of their seeds."""
    others = [folder.parent for folder in (paths.MODEL / "replicas").glob("*/config.json")]
    return [paths.MODEL, *sorted(others, key=lambda folder: int(folder.name))]


def measured_on(splits: Mapping[str, Sentences]) -> str:
    held_out = [name for name in ("valid", "test") if len(splits[name])]
    if held_out:
        return f"training text and held-out text ({', '.join(held_out)})"
    return "training text (no held-out text: valid_fraction and test_fraction are 0)"


def measure_replica(folder: Path, splits: Mapping[str, Sentences], threads: int) -> dict[str, Any]:
    """Seed and metrics of one model; of one that diverged, where, and what was last measured before."""
    model, about = load_model(folder)
    ended: dict[str, Any] = {key: about[key] for key in ("diverged_at", "last_finite") if key in about}
    return {"seed": about["training"]["seed"], **ended, **measure(model, splits, threads)}


def measure(model: LanguageModel, splits: Mapping[str, Sentences], threads: int) -> dict[str, Any]:
    """Metrics of every split that has sentences."""
    metrics: dict[str, Any] = {
        name: measures(score(model, splits[name], threads=threads)) for name in paths.SPLITS if len(splits[name])
    }
    train = metrics["train"]
    if len(splits["train"].ids) <= _FLOOR_TOKENS:
        floor = prefix_tree_floor(splits["train"].ids.tolist())
        train |= {"floor": floor, "excess": None if train["loss"] is None else train["loss"] - floor}
    return metrics


def measures(result: Score) -> dict[str, Any]:
    """What is said of one split; loss in nats a token; null what is not finite, or beyond a float."""
    finite = math.isfinite(result.loss)
    return {
        "loss": result.loss if finite else None,
        "perplexity": result.perplexity if finite else None,
        "accuracy": result.accuracy if finite else None,
        "tokens": result.tokens,
        "sentences": result.sentences,
        "unknown_share": result.unknown / result.tokens,
    }


def summary(replicas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What reports/metrics.json says: of one replica its metrics, of several their means and the loss's spread.

    A measure that is null for a replica has no part in the mean; `replicas` and `diverged` count.
    """
    if len(replicas) == 1:
        return {key: value for key, value in replicas[0].items() if key != "seed"}
    found: dict[str, Any] = {
        "replicas": len(replicas),
        "diverged": sum("diverged_at" in replica for replica in replicas),
    }
    for split in (name for name in paths.SPLITS if name in replicas[0]):
        found[split] = {}
        for name, value in replicas[0][split].items():
            values = [replica[split][name] for replica in replicas if replica[split][name] is not None]
            if name in ("loss", "perplexity", "accuracy", "excess"):
                over = spread(values) if values else dict.fromkeys(("mean", "std", "low", "high"))
                found[split][name] = over["mean"]
                if name == "loss":
                    found[split] |= {f"loss_{bound}": over[bound] for bound in ("std", "low", "high")}
            else:
                found[split][name] = value
    return found


if __name__ == "__main__":
    run(main)

"""A trained model → its metrics on each split, next words and attention for the prompts.

Run by `dvc repro`; by hand: `python -m stages.evaluate`.
"""

from __future__ import annotations

from typing import Any

import safetensors.torch
import torch

from stages import files, paths
from stages.analysis.floor import prefix_tree_floor
from stages.model.predict import Predictor
from stages.params import EvaluateParams
from stages.stage import Stage, run
from stages.training.batches import Sentences
from stages.training.scoring import Score, score

_FLOOR_TOKENS = 2_000_000  # above, the prefix tree takes more memory than its answer is worth


def main() -> None:
    stage = Stage("evaluate", EvaluateParams)
    params = stage.params
    torch.set_num_threads(params.threads)

    predictor = Predictor.load(paths.MODEL, paths.VOCAB / "vocab.json")
    splits = {name: Sentences.load(paths.VOCAB / f"{name}.npy") for name in paths.SPLITS}

    metrics = measure(predictor, splits)
    predictions = [predictor.next_words(prompt, params.top_k) for prompt in params.prompts]
    attention = {f"prompt-{i}": predictor.attention(prompt) for i, prompt in enumerate(params.prompts)}

    stage.check_inputs()
    files.write_json(paths.METRICS, metrics)
    with files.replacing_folder(paths.EVALUATION) as folder:
        files.write_json(folder / "next_words.json", [prediction.to_dict() for prediction in predictions])
        safetensors.torch.save_file(attention, folder / "attention.safetensors")
    for prediction in predictions:
        if prediction.unknown:
            stage.warn(f"prompt {prediction.prompt!r}: unknown words {', '.join(prediction.unknown)} read as [unk]")
    train: dict[str, Any] = metrics["train"]
    stage.say(f"train loss {train['loss']:.4f} nats/token, {metrics['measured_on']}")


def measure(predictor: Predictor, splits: dict[str, Sentences]) -> dict[str, Any]:
    """Metrics of every split that has sentences, and in words what they were measured on."""
    held_out = [name for name in ("valid", "test") if len(splits[name])]
    measured_on = (
        f"training text and held-out text ({', '.join(held_out)})"
        if held_out
        else "training text (no held-out text: valid_fraction and test_fraction are 0)"
    )
    metrics: dict[str, Any] = {"measured_on": measured_on}
    for name in ("train", *held_out):
        metrics[name] = summary(score(predictor.model, splits[name]))
    if len(splits["train"].ids) <= _FLOOR_TOKENS:
        floor = prefix_tree_floor(splits["train"].ids.tolist())
        metrics["train"] |= {"floor": floor, "excess": metrics["train"]["loss"] - floor}
    return metrics


def summary(result: Score) -> dict[str, Any]:
    """What reports/metrics.json says of one split; loss in nats a token, perplexity null where it overflows."""
    return {
        "loss": result.loss,
        "perplexity": result.perplexity,
        "accuracy": result.accuracy,
        "tokens": result.tokens,
        "sentences": result.sentences,
        "unknown_share": result.unknown / result.tokens,
    }


if __name__ == "__main__":
    run(main)

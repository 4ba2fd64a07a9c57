"""A trained model → its measures on each split, next words and attention for the prompts; of replicas, their spread.

Run by `dvc repro`; by hand: `python -m stages.evaluate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import safetensors.torch
from torch import Tensor

from stages import files, numerics, paths
from stages.analysis.calibration import reliability
from stages.analysis.floor import prefix_tree_floor
from stages.analysis.measures import MEASURES, Yardstick, measures
from stages.analysis.ngrams import Counts
from stages.analysis.spread import spread
from stages.errors import ArtifactError, ParamError
from stages.model.predict import Prediction, Predictor
from stages.model.storage import SNAPSHOTS, load_model, load_weights
from stages.params import EvaluateParams
from stages.stage import Stage, run
from stages.text.reading import Parts
from stages.text.vocabulary import Vocabulary
from stages.training.batches import Sentences
from stages.training.scoring import Targets, score

if TYPE_CHECKING:
    from stages.analysis.against_grammar import Trial

_LONGEST_SHOWN = 64  # tokens of a prompt whose attention on the way is drawn
_FLOOR_TOKENS = 2_000_000  # above, the prefix tree takes more memory than its answer is worth
_AVERAGED = (*MEASURES, "excess", "excess_error", "agreement_number", "agreement_gender")


class Text(NamedTuple):
    """A split, and what is scored of it."""

    sentences: Sentences
    targets: Targets
    yardstick: Yardstick
    floor: float | None  # the lowest possible loss on a training text, all of which is scored


def main() -> None:
    stage = Stage("evaluate", EvaluateParams)
    params = stage.params
    numerics.set_numerics(params.numerics)

    predictor = Predictor.load(paths.MODEL, paths.VOCAB / "vocab.json")
    context = check_stride(predictor.window, params.stride)
    counts = Counts(Sentences.load(paths.VOCAB / "train.npy").ids, len(predictor.vocabulary))
    texts = load_texts(counts, params.train_sample)
    trial = grammar_trial(params, predictor.vocabulary)
    found = [measure_replica(folder, texts, trial, context, params) for folder in replica_folders()]
    replicas, shown = [measured for measured, _ in found], found[0][1]
    metrics = {
        "measured_on": measured_on(texts),
        "context": context,
        "stride": params.stride or context,
        "counted_tokens": counts.tokens,
        **summary(replicas),
    }
    answers = [predictor.explain(prompt, params.top_k) for prompt in params.prompts]

    before = attention_before(predictor, answers)

    stage.check_inputs()
    files.write_json(paths.METRICS, metrics)
    files.write_json(paths.REPLICAS, replicas)
    with files.replacing_folder(paths.EVALUATION) as folder:
        files.write_json(folder / "next_words.json", [prediction.to_dict() for prediction, _ in answers])
        for name, content in shown.items():
            files.write_json(folder / f"{name}.json", content)
        attention = {f"prompt-{i}": weights for i, (_, weights) in enumerate(answers)}
        safetensors.torch.save_file(attention, folder / "attention.safetensors")
        files.as_usual(folder / "attention.safetensors")
        if before:
            safetensors.torch.save_file(before, folder / "attention_before.safetensors")
            files.as_usual(folder / "attention_before.safetensors")
    for prediction, _ in answers:
        if prediction.unknown:
            stage.warn(f"prompt {prediction.prompt!r}: unknown words {', '.join(prediction.unknown)} read as [unk]")
    loss = metrics["train"]["loss"]
    said = "not finite" if loss is None else f"{loss:.4f} nats/token"
    stage.say(f"train loss {said}, {metrics['measured_on']}")


def attention_before(predictor: Predictor, answers: Sequence[tuple[Prediction, Tensor]]) -> dict[str, Tensor]:
    """The attention [L, H, T, T] of the models kept on the way, by `prompt-{i}/{updates}`; not of long prompts."""
    found = {}
    before = copy(predictor)
    before.model = deepcopy(predictor.model)  # which keeps the weights that it was trained to
    for path in sorted((paths.MODEL / SNAPSHOTS).glob("*.safetensors"), key=lambda path: int(path.stem)):
        load_weights(before.model, path)
        for i, (prediction, _) in enumerate(answers):
            if 1 < len(prediction.tokens) <= _LONGEST_SHOWN:
                found[f"prompt-{i}/{path.stem}"] = before.explain(prediction.prompt, 1)[1]
    return found


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
            yardstick = Yardstick.of(sentences, targets, Parts(file).with_ends(), counts)
        except ValueError as error:
            raise ArtifactError(file, f"{error} in data/vocab; `dvc repro -f` makes them anew") from None
        whole = name == "train" and len(targets) == sentences.targets <= _FLOOR_TOKENS
        floor = prefix_tree_floor(sentences.ids.tolist()) if whole else None
        found[name] = Text(sentences, targets, yardstick, floor)
    return found


def replica_folders() -> list[Path]:
    """The model of each replica, the first of which is the model as such; in the order of their seeds."""
    others = [folder.parent for folder in (paths.MODEL / "replicas").glob("*/config.json")]
    return [paths.MODEL, *sorted(others, key=lambda folder: int(folder.name))]


def grammar_trial(params: EvaluateParams, vocabulary: Vocabulary) -> Trial | None:
    """What a model of sentences of the grammar is tried with; None for other corpora."""
    if params.corpus != "grammar":
        return None
    from stages.analysis.against_grammar import Trial  # loads scipy
    from stages.text.grammar import Grammar

    return Trial(Grammar(params.grammar_depth), vocabulary)


def measured_on(texts: Mapping[str, Text]) -> str:
    held_out = [name for name in texts if name != "train"]
    scored, whole = len(texts["train"].targets), texts["train"].sentences.targets
    sample = "" if scored == whole else f"a sample of {scored} of the {whole} tokens of the "
    if held_out:
        return f"{sample}training text and held-out text ({', '.join(held_out)})"
    return f"{sample}training text (no held-out text: valid_fraction and test_fraction are 0)"


def measure_replica(
    folder: Path, texts: Mapping[str, Text], trial: Trial | None, context: int, params: EvaluateParams
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Seed and measures of one model; and the tables of its figures, by their names.

    Of one that diverged, where, and what was last measured before.
    """
    model, about = load_model(folder)
    found: dict[str, Any] = {"seed": about["training"]["seed"]}
    found |= {key: about[key] for key in ("diverged_at", "last_finite") if key in about}
    calibration = {}
    for name, text in texts.items():
        windows: dict[str, Any] = {"max_length": context, "stride": params.stride}
        result = score(model, text.sentences, targets=text.targets, **windows, threads=params.threads)
        found[name] = measures(result, text.yardstick, params.resamples)
        loss, floor = found[name]["loss"], text.floor
        if floor is not None:
            found[name] |= {"floor": floor, "excess": None if loss is None else loss - floor}
        calibration[name] = reliability(result.confidence_N, result.correct_N) if result.finite else []
    if trial is None:
        return found, {"calibration": calibration}
    outcome = trial.take(model, context, params.threads)
    found["truth"] = outcome.numbers
    return found, {"calibration": calibration, "truth": outcome.next_words, "agreement": outcome.agreement}


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
    for split in (name for name in (*paths.SPLITS, "truth") if name in replicas[0]):
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

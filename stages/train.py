"""Ids and parameters → a trained model and the history of its training.

Run by `dvc repro`; by hand: `python -m stages.train`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from tqdm import tqdm

from stages import files, paths
from stages.execution import Execution, Journal, start_follower
from stages.model.language_model import LanguageModel, LanguageModelConfig, initialise
from stages.model.storage import save_model
from stages.optim.registry import make_optimizer
from stages.params import Params, TrainParams, load_params
from stages.stage import Stage, run
from stages.text.vocabulary import Vocabulary
from stages.training.batches import Sentences
from stages.training.loop import Update, count_updates, train
from stages.training.randomness import generator
from stages.training.series import JournalSeries


def main() -> None:
    stage = Stage("train", TrainParams)
    params = stage.params
    torch.set_num_threads(params.threads)

    vocab = paths.VOCAB / "vocab.json"
    vocabulary = Vocabulary.load(vocab)
    splits = {name: Sentences.load(paths.VOCAB / f"{name}.npy") for name in paths.SPLITS}
    updates = count_updates(len(splits["train"]), params)
    advise(stage, updates)

    model = LanguageModel(model_config(params, len(vocabulary)))
    initialise(model, generator(params.seed, "init"))
    optimizer = make_optimizer(model.parameters(), params)

    execution = Execution.create("trained", load_params(Params).model_dump())
    execution.make_current()
    start_follower(execution)
    history: list[dict[str, Any]] = []
    validations: list[dict[str, Any]] = []
    with Journal(execution) as journal, tqdm(total=updates, unit="update", disable=None) as bar:
        series = JournalSeries(journal, updates)
        for record in train(model, optimizer, splits, params):
            if isinstance(record, Update):
                history.append(asdict(record))
                series.update(record)
                bar.update()
            else:
                validations.append(asdict(record))
                series.validation(record)
                report(stage, validations, updates, bar)

    stage.check_inputs()
    about = {
        "training": params.model_dump(),
        "vocab_md5": files.md5_file(vocab),
        "updates": updates,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    with files.replacing_folder(paths.MODEL) as folder:
        save_model(model, folder, about)
    files.write_records(paths.HISTORY, history)
    files.write_records(paths.VALIDATION, validations)
    execution.append_event("trained")


def model_config(params: TrainParams, vocab_size: int) -> LanguageModelConfig:
    """The part of the parameters that shapes the model."""
    shape = params.model_dump(include=LanguageModelConfig.model_fields.keys() - {"vocab_size"})
    return LanguageModelConfig(vocab_size=vocab_size, **shape)


def advise(stage: Stage[TrainParams], updates: int) -> None:
    """Say what a user may not have meant."""
    params = stage.params
    if params.schedule != "none" and params.warmup >= updates:
        stage.warn(
            f"warmup = {params.warmup} ≥ {updates} updates: the rate is still rising when training ends and never "
            "reaches its peak"
        )


def report(stage: Stage[TrainParams], validations: list[dict[str, Any]], updates: int, bar: tqdm[Any]) -> None:
    """The newest validation on the terminal: beside the progress bar, or as about ten plain lines in all."""
    newest, before = validations[-1], validations[-2]["step"] if len(validations) > 1 else -1
    loss = f"{newest['split']} loss {newest['loss']:.4f}"
    if not bar.disable:
        bar.set_postfix_str(loss)
    elif newest["step"] * 10 // updates > before * 10 // updates:
        stage.say(f"update {newest['step']} of {updates}, {loss} nats/token")


if __name__ == "__main__":
    run(main)

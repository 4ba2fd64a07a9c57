"""`noam lr-find`: a short run whose rate grows, a picture of its loss, and a suggested peak and warm-up."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from stages import files, paths
from stages.commands import options
from stages.errors import ArtifactError, ParamError

if TYPE_CHECKING:
    from stages.commands.options import Commands
    from stages.params import TrainParams
    from stages.training.range_test import Suggestion

FOLDER = Path("reports/lr-find")
_positive = options.real("a number > 0", lambda value: value > 0)


def add(commands: Commands) -> None:
    parser = commands.add_parser("lr-find", help="one short run that suggests a peak rate and a warm-up")
    parser.add_argument("--from", dest="low", type=_positive, default=1e-6, metavar="RATE", help="first rate (1e-6)")
    parser.add_argument("--to", dest="high", type=_positive, default=1.0, metavar="RATE", help="last rate (1)")
    parser.add_argument(
        "--updates", type=options.whole(20, 100_000), default=300, metavar="N", help="rates tried (300)"
    )
    parser.set_defaults(do=run)


def run(arguments: argparse.Namespace) -> int:
    from stages import numerics  # before NumPy; the others load torch
    from stages.analysis import range_figure, style
    from stages.params import TrainParams, load_params
    from stages.text.vocabulary import Vocabulary
    from stages.training.batches import Sentences
    from stages.training.range_test import range_test, rates, suggest
    from stages.training.records import count_updates
    from stages.training.session import epochs_of

    if arguments.low >= arguments.high:
        raise ParamError(
            "--from", f" {arguments.low:g}: expected less than --to {arguments.high:g}", file="command line"
        )
    params = load_params(TrainParams)
    numerics.set_numerics(params.numerics)
    if not paths.VOCAB.is_dir():
        raise ArtifactError(paths.VOCAB, "not there; `dvc repro vocab` makes it")
    vocab_size = len(Vocabulary.load(paths.VOCAB / "vocab.json"))
    splits = {name: Sentences.load(paths.VOCAB / f"{name}.npy") for name in paths.SPLITS}
    updates = count_updates(epochs_of(splits["train"], params).per_epoch, params)

    tried = rates(arguments.low, arguments.high, arguments.updates)
    points = list(range_test(params, vocab_size, splits, tried))
    if not points:
        raise ParamError("--from", f" {arguments.low:g}: the first update already diverged", file="command line")
    found = suggest(points, params, updates)
    figure = range_figure.range_figure(range_figure.table(points), found.lr, found.lowest)

    for kind, content in style.rendered(figure).items():
        files.write_bytes(FOLDER / f"lr-find.{kind}", content)
    files.write_records(FOLDER / "lr-find.json", [asdict(point) for point in points])
    for line in in_words(found, params, updates, len(points), arguments.updates):
        print(line)
    print(f"picture       {FOLDER / 'lr-find.png'}")
    return 0


def in_words(found: Suggestion, params: TrainParams, updates: int, done: int, asked: int) -> list[str]:
    """What to make of it, as values of parameters."""
    lines = [f"lowest loss   at a rate of {found.lowest:.3g}, of {done} rates tried"]
    if done < asked:
        lines[0] += f" (of {asked}: the loss exploded, or was no longer finite)"
    if found.at_end:
        lines.append("note          the loss still fell at the last rate: try a higher --to")
    if params.schedule == "noam":
        factor = found.lr * (params.d_model * found.warmup) ** 0.5
        lines.append(f"suggested     factor: {factor:.3g} with warmup: {found.warmup} (a peak of {found.lr:.3g})")
    else:
        ramp = "" if params.schedule == "none" else f" with warmup: {found.warmup}"
        lines.append(f"suggested     lr: {found.lr:.3g}{ramp}")
    lines.append(f"              for {params.optimizer} and the {updates} updates of params.yaml")
    lines.append("              one seed and one short run: a place to start a study from")
    return lines

"""`noam predict`: the next words after a beginning of a sentence."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from stages import files
from stages.commands import options
from stages.errors import LabError

if TYPE_CHECKING:
    from stages.commands.options import Commands


def add(commands: Commands) -> None:
    parser = commands.add_parser("predict", help="the next words after a beginning of a sentence")
    parser.add_argument("text", type=options.prompt, help="the beginning; '' continues [bos] alone")
    parser.add_argument("--top", type=options.whole(), default=5, metavar="N", help="how many words (default: 5)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options.add_model(parser)
    parser.set_defaults(do=run)


def run(arguments: argparse.Namespace) -> int:
    predictor = options.load_predictor(arguments.model)
    prediction = predictor.next_words(arguments.text, arguments.top)
    if not prediction.finite:
        raise LabError(predictor.not_finite)
    if arguments.json:
        print(files.dump_json(prediction.to_dict()), end="")
        return 0
    options.warn_of_unknown(prediction.unknown)
    if prediction.dropped:
        print(
            f"the model reads {predictor.window} tokens; the first {prediction.dropped} are left out", file=sys.stderr
        )
    print(" ".join(prediction.tokens))
    width = max(len(word) for word, _ in prediction.next)
    for word, probability in prediction.next:
        print(f"  {word:<{width}}  {probability:.3f}")
    return 0

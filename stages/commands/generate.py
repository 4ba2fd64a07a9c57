"""`noam generate`: how a text goes on, word by word as the model finds it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from stages import files
from stages.commands import options
from stages.errors import LabError

if TYPE_CHECKING:
    from stages.commands.options import Commands
    from stages.model.generate import Sampling
    from stages.model.predict import Predictor

_TEMPERATURE = options.real("a number ≥ 0 (0 takes the most likely token)", lambda number: number >= 0)
_SHARE = options.real("a number > 0 and ≤ 1", lambda number: 0 < number <= 1)


def add(commands: Commands) -> None:
    parser = commands.add_parser("generate", help="how a text goes on; the same seed gives the same text")
    parser.add_argument("prompt", nargs="?", type=options.prompt, default="",
                        help="the beginning (default: none, [bos] alone)")  # fmt: skip
    parser.add_argument("--temperature", type=_TEMPERATURE, default=1.0, metavar="T",
                        help="divides the logits; 0 always takes the most likely token (default: 1)")  # fmt: skip
    parser.add_argument("--top-k", type=options.whole(), metavar="K",
                        help="choose among the K most likely tokens (default: all)")  # fmt: skip
    parser.add_argument("--top-p", type=_SHARE, default=1.0, metavar="P",
                        help="choose among the fewest tokens with probability P together (default: 1)")  # fmt: skip
    parser.add_argument("--seed", type=options.whole(0, 2**32 - 1), default=0, metavar="N",
                        help="of the first text; the next ones have the seeds after it (default: 0)")  # fmt: skip
    parser.add_argument("--count", type=options.whole(1, 1000), default=1, metavar="N",
                        help="how many texts (default: 1)")  # fmt: skip
    parser.add_argument("--max-tokens", type=options.whole(1, 10_000), default=100, metavar="N",
                        help="tokens of a text after the prompt, at most (default: 100)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, when all is done")
    options.add_model(parser)
    parser.set_defaults(do=run)


def run(arguments: argparse.Namespace) -> int:
    from stages.model.generate import Sampling

    if arguments.count > 1 and not arguments.temperature:
        raise LabError(f"--count {arguments.count}: expected 1 with --temperature 0, which always gives the same text")
    sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p)
    predictor = options.load_predictor(arguments.model)
    texts = _Texts(predictor, sampling, arguments)
    if arguments.json:
        samples = [texts.whole(arguments.seed + i) for i in range(arguments.count)]
        print(files.dump_json({"prompt": arguments.prompt, "unknown": texts.unknown, "samples": samples}), end="")
        return 0
    options.warn_of_unknown(texts.unknown)
    for i in range(arguments.count):
        texts.stream(arguments.seed + i)
    return 0


class _Texts:
    """The texts that follow one prompt."""

    def __init__(self, predictor: Predictor, sampling: Sampling, arguments: argparse.Namespace) -> None:
        self._predictor, self._sampling, self._most = predictor, sampling, arguments.max_tokens
        self._prompt = predictor.encode(arguments.prompt)
        self.unknown = predictor.vocabulary.unknown(arguments.prompt)
        self._told = False

    def stream(self, seed: int) -> None:
        """Print the prompt as the model reads it and each token as it comes."""
        from stages.model.generate import generate, growth

        vocabulary = self._predictor.vocabulary
        print(vocabulary.decode(self._prompt), end="", flush=True)
        generated = generate(self._predictor, self._prompt, self._sampling, seed, self._most, self._dropped)
        try:
            for piece in growth(vocabulary, self._prompt, generated):
                print(piece, end="", flush=True)
        finally:
            print(flush=True)

    def whole(self, seed: int) -> dict[str, Any]:
        """One text for programs; `ended` says whether the model ended it or --max-tokens did."""
        from stages.model.generate import generate

        vocabulary = self._predictor.vocabulary
        ids = list(generate(self._predictor, self._prompt, self._sampling, seed, self._most, self._dropped))
        return {
            "seed": seed,
            "text": vocabulary.decode([*self._prompt, *ids]),
            "tokens": [vocabulary.label(i) for i in ids],
            "ended": "max_tokens" if len(ids) == self._most else "[eos]",
        }

    def _dropped(self) -> None:
        if not self._told:
            window = self._predictor.window
            print(f"note: the model reads the last {window} tokens; older ones are left out", file=sys.stderr)
            self._told = True

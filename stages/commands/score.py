"""`noam score`: how well the model expects each line of a text."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from stages.commands import options
from stages.errors import CorpusError

if TYPE_CHECKING:
    from stages.commands.options import Commands
    from stages.training.lines import Scored

_ESCAPED = re.compile("[\udc80-\udcff]")  # how Python keeps bytes that are not UTF-8


def add(commands: Commands) -> None:
    parser = commands.add_parser("score", help="tokens, likelihood and perplexity of each line of a text")
    parser.add_argument("file", help="a UTF-8 text with one sentence a line, or - for standard input")
    parser.add_argument("--json", action="store_true", help="print a line of JSON a sentence")
    options.add_model(parser)
    parser.set_defaults(do=run)


def run(arguments: argparse.Namespace) -> int:
    from stages.training.lines import Scored, score_lines

    predictor = options.load_predictor(arguments.model)
    total, blank, number = Scored(0, 0, 0.0), 0, 0
    if not arguments.json:
        print(f"{'line':>8}  {'tokens':>6}  {'unknown':>7}  {'nats':>9}  {'perplexity':>10}  text")
    with opened(arguments.file) as file:
        scores = score_lines(predictor, lines_of(file, arguments.file))
        for number, (text, scored) in enumerate(scores, start=1):
            total += scored
            blank += not scored.tokens
            if arguments.json:
                print(json.dumps({"line": number, **_known(scored), "text": text}, ensure_ascii=False))
            else:
                print(f"{number:>8}  {_columns(scored)}  {options.shortened(text) if scored.tokens else '(blank)'}")
    if not total.tokens:
        raise CorpusError(arguments.file, f"nothing to score: {number} lines, all of them blank")
    print(_total(total, number - blank, blank), file=sys.stderr if arguments.json else sys.stdout)
    return 0


@contextmanager
def opened(name: str) -> Iterator[IO[str]]:
    """A text, or standard input for '-'; bytes that are not UTF-8 are kept apart for `lines_of`.

    Raises:
        CorpusError: it cannot be opened.
    """
    try:
        raw = sys.stdin.buffer if name == "-" else open(name, "rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise CorpusError(name, f"cannot be read: {error.strerror}") from None
    text = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape")
    try:
        yield text
    finally:
        text.detach()
        if name != "-":
            raw.close()


def lines_of(file: IO[str], name: str) -> Iterator[str]:
    """Lines without their ends, which are LF, CR LF or CR.

    Raises:
        CorpusError: a line that is not UTF-8.
    """
    for number, line in enumerate(file, start=1):
        if found := _ESCAPED.search(line):
            byte = f"0x{ord(found[0]) - 0xDC00:02x}"
            raise CorpusError(name, f"byte {byte} is not UTF-8; convert the text to UTF-8", line=number)
        yield line.rstrip("\n")


def _known(scored: Scored) -> dict[str, float | int | None]:
    """What JSON says of a line; a blank one has no likelihood."""
    return scored.to_dict() if scored.tokens else scored.to_dict() | {"nll": None}


def _columns(scored: Scored) -> str:
    if not scored.tokens:
        return f"{0:>6}  {0:>7}  {'–':>9}  {'–':>10}"
    return f"{scored.tokens:>6}  {scored.unknown:>7}  {scored.nll:>9.3f}  {_perplexity(scored):>10}"


def _perplexity(scored: Scored) -> str:
    """Five digits, or what it is beyond."""
    return "> 1e304" if scored.perplexity is None else f"{scored.perplexity:.5g}"


def _total(total: Scored, sentences: int, blank: int) -> str:
    return (
        f"total: {sentences} {'line' if sentences == 1 else 'lines'} scored, {blank} blank; {total.tokens} tokens "
        f"(one [eos] a line among them), {total.unknown} unknown; {total.nll:.3f} nats, {total.loss:.4f} a token; "
        f"perplexity {_perplexity(total)}"
    )

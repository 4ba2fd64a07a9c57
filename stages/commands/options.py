"""What the options of the commands take; argparse names the option in front of each message."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stages import files, paths

if TYPE_CHECKING:
    from stages.model.predict import Predictor

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def whole(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """A whole number from `least` to `most`."""
    rule = f"a whole number ≥ {least}" if most is None else f"a number from {least} to {most}"

    def parse(text: str) -> int:
        # The length first: int() refuses thousands of digits with a message of its own.
        if not text.isdecimal() or len(text) > 18 or not least <= int(text) <= (most or sys.maxsize):
            raise argparse.ArgumentTypeError(f"{shortened(text)!r}: expected {rule}")
        return int(text)

    return parse


def real(rule: str, allowed: Callable[[float], bool]) -> Callable[[str], float]:
    """A finite number that is `allowed`, which `rule` says in words."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or not allowed(number):
            raise argparse.ArgumentTypeError(f"{shortened(text)!r}: expected {rule}")
        return number

    return parse


def prompt(text: str) -> str:
    """A prompt; the bytes of an argument that are not UTF-8 come as halves of surrogate pairs."""
    if not text.isprintable() and any("\ud800" <= char <= "\udfff" for char in text):
        raise argparse.ArgumentTypeError(f"{shortened(text)!r}: expected UTF-8")
    return text


port = whole(1, 65535)


def shortened(text: str, longest: int = 60) -> str:
    """One line of at most `longest` characters; what a terminal would obey is shown as a question mark in a box."""
    text = "".join(char if char.isprintable() else "\ufffd" for char in text[: longest + 1])
    return text if len(text) <= longest else text[: longest - 1] + "…"


def warn_of_unknown(words: Sequence[str]) -> None:
    """Say which words of a prompt the model does not know."""
    if words:
        print(f"unknown to the model, read as [unk]: {', '.join(words)}", file=sys.stderr)


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", metavar="PATH", help="a folder with a model, ours or one that MLflow saved (default: data/model)"
    )


def load_predictor(folder: str | None = None) -> Predictor:
    """The model of a folder, or of this workspace, which computes as it was trained: as in the evaluation.

    Raises:
        ArtifactError: it is missing or damaged.
    """
    from stages import numerics  # imports torch, as the next one does
    from stages.model.places import model_files
    from stages.model.predict import Predictor

    weights, vocab = model_files(Path(folder) if folder else paths.MODEL)
    about = files.read_json(weights / "config.json")
    training = about.get("training") if isinstance(about, dict) else None
    numerics.set_numerics((training or {}).get("numerics", "portable"))
    return Predictor.load(weights, vocab)

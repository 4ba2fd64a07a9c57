"""Which sentences are held out: a function of the text and the seed alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from stages.errors import LabError

Splits = dict[str, list[str]]


def split_sentences(sentences: Sequence[str], valid_fraction: float, test_fraction: float, seed: int) -> Splits:
    """Sentences by split, each in the order of the text.

    The distinct sentences are ranked by a hash of seed and sentence. The first ranks are the test's, the next ones
    validation's; so reordering the text moves nothing, and the copies of a sentence stay together. A fraction above 0
    gives at least one distinct sentence.

    Raises:
        LabError: fewer distinct sentences than splits.
    """
    distinct = sorted(set(sentences), key=lambda sentence: _rank(seed, sentence))
    n_test, n_valid = (
        max(1, round(fraction * len(distinct))) if fraction else 0 for fraction in (test_fraction, valid_fraction)
    )
    if n_test + n_valid >= len(distinct):
        raise LabError(
            f"corpus: {len(distinct)} distinct sentence(s) are too few to hold some out "
            f"(valid_fraction = {valid_fraction:g} takes {n_valid}, test_fraction = {test_fraction:g} takes {n_test}, "
            "and none is left to train on); set both to 0, or bring more text"
        )
    test, valid = set(distinct[:n_test]), set(distinct[n_test : n_test + n_valid])
    splits: Splits = {"train": [], "valid": [], "test": []}
    for sentence in sentences:
        splits["test" if sentence in test else "valid" if sentence in valid else "train"].append(sentence)
    return splits


def _rank(seed: int, sentence: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{sentence}".encode()).digest()

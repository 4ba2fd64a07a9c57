"""Which sentences are held out: a function of the text and the seed alone."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from stages.errors import LabError

TRAIN, VALID, TEST = range(3)  # the order of paths.SPLITS
RANK_BYTES = 8  # two of 10^8 distinct sentences share these with a chance of 0.03 %, and then share a split too


def salt(seed: int) -> bytes:
    """What is hashed before a sentence."""
    return f"{seed}\n".encode()


def rank(salted: bytes) -> bytes:
    """The rank of a sentence behind its salt, as `RANK_BYTES` bytes that sort as the whole digest does."""
    return hashlib.sha256(salted).digest()[:RANK_BYTES]


def to_ranks(joined: bytes | bytearray) -> npt.NDArray[np.uint64]:
    """Ranks, written one after another, as numbers (n,) of the same order."""
    return np.frombuffer(joined, dtype=f">u{RANK_BYTES}").astype(np.uint64)


def assign(
    ranks: npt.NDArray[np.uint64], valid_fraction: float, test_fraction: float
) -> tuple[npt.NDArray[np.uint8], int]:
    """The split of every sentence.

    The distinct sentences are ranked by a hash of seed and sentence. The first ranks are the test's, the next ones
    validation's; so reordering the text moves nothing, and the copies of a sentence stay together. A fraction above 0
    gives at least one distinct sentence.

    Args:
        ranks: (n,), one for each sentence of the text.

    Returns:
        TRAIN, VALID or TEST (n,), and the number of distinct sentences.

    Raises:
        LabError: fewer distinct sentences than splits.
    """
    ordered = np.sort(ranks)  # np.unique hashes, which takes seven times the memory
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    distinct = ordered[first]
    n_valid, n_test = held_out(len(distinct), valid_fraction, test_fraction, "distinct sentence(s)")
    splits = np.full(len(ranks), TRAIN, np.uint8)
    if n_test + n_valid:
        splits[ranks < distinct[n_test + n_valid]] = VALID
        splits[ranks < distinct[n_test]] = TEST
    return splits, len(distinct)


def held_out(n: int, valid_fraction: float, test_fraction: float, what: str) -> tuple[int, int]:
    """How many of `n` go to validation and to the test, at least one each where the fraction is above 0.

    Raises:
        LabError: none would be left to train on.
    """
    n_valid, n_test = (max(1, round(fraction * n)) if fraction else 0 for fraction in (valid_fraction, test_fraction))
    if n_valid + n_test and n_valid + n_test >= n:
        raise LabError(
            f"corpus: {n} {what} are too few to hold some out "
            f"(valid_fraction = {valid_fraction:g} takes {n_valid}, test_fraction = {test_fraction:g} takes {n_test}, "
            "and none is left to train on); set both to 0, or bring more text"
        )
    return n_valid, n_test


def count_known(some: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> int:
    """How many of some sentences also occur among others, by their ranks (n,) and (m,), m > 0."""
    ordered = np.sort(others)
    nearest = np.searchsorted(ordered, some).clip(max=len(ordered) - 1)
    return int((ordered[nearest] == some).sum())

"""The texts that are measured on, as the ids that each contender reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from stages.text.vocabulary import BOS, EOS, SPECIALS

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "data" / "raw" / "notebook.txt"
CHARACTERS, STREAM, SENTENCES, LARGE = "characters.json", "stream.bin", "sentences.npy", "large.npy"
LARGE_WORDS = 10_000
_MADE_CHARACTERS = 850_000
_PIECE = 100_000  # sentences written at once


def real_text() -> tuple[str, str]:
    """Real English text and its name, from the folder of shared corpora; where it is not there, text made up."""
    folder = Path(os.environ.get("NOAM_SHARED", ROOT.parent / "shared"))
    file = folder / "corpora" / "tinyshakespeare_head.txt"
    if file.is_file():
        return file.read_text(encoding="utf-8"), file.name
    return made_text(_MADE_CHARACTERS), "text made up, of the size of tinyshakespeare_head.txt"


def made_text(characters: int) -> str:
    """About as many characters, in lines of words whose frequencies fall with their rank; always the same."""
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))
    words = ["".join(random.choice(letters, length)) for length in random.integers(2, 9, 4000)]
    share = 1 / np.arange(1, len(words) + 1)
    chosen = random.choice(len(words), characters // 5, p=share / share.sum())
    lines = (" ".join(words[i] for i in chosen[at : at + 7]).capitalize() for at in range(0, len(chosen), 7))
    return ".\n".join(lines)[:characters]


def write_characters(folder: Path, text: str) -> None:
    """The text by characters: one stream for the peer, for us the sentences of its lines (blank ones left out)."""
    characters = sorted(set(text))
    id_of = {character: i for i, character in enumerate(characters)}
    np.array([id_of[character] for character in text], dtype=np.uint16).tofile(folder / STREAM)
    sentences: list[int] = []
    for line in filter(None, text.split("\n")):
        sentences += [BOS, *(len(SPECIALS) + id_of[character] for character in line), EOS]
    np.save(folder / SENTENCES, np.array(sentences, dtype=np.uint16))
    (folder / CHARACTERS).write_text(json.dumps(characters), encoding="utf-8")


def count_characters(folder: Path) -> int:
    """Different characters of the text in this folder."""
    return len(json.loads((folder / CHARACTERS).read_text(encoding="utf-8")))


def write_large(folder: Path, text_bytes: int) -> int:
    """Ids of sentences of 18 words as a text of so many bytes has them, six a word with its space.

    Written a piece at a time, so that whoever writes needs no memory for it.

    Returns:
        The number of ids.
    """
    sentences = text_bytes // (6 * 18)
    ids = open_memmap(folder / LARGE, mode="w+", dtype=np.uint16, shape=(sentences * 20,))
    random = np.random.default_rng(0)
    for first in range(0, len(ids), 20 * _PIECE):
        count = min(_PIECE, (len(ids) - first) // 20)
        piece = random.integers(len(SPECIALS), len(SPECIALS) + LARGE_WORDS, (count, 20), dtype=np.uint16)
        piece[:, 0], piece[:, -1] = BOS, EOS
        ids[first : first + piece.size] = piece.ravel()
    ids.flush()
    return len(ids)


def write_text(file: Path, size: int) -> None:
    """A text of about so many bytes, a sentence of ten words a line, written a piece at a time."""
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkqjxzáéñ"))
    words = np.array(["".join(random.choice(letters, length)) for length in random.integers(2, 10, 60_000)])
    share = 1 / np.arange(1, len(words) + 1)
    with open(file, "w", encoding="utf-8") as out:
        while file.stat().st_size < size:
            chosen = random.choice(words, (_PIECE, 10), p=share / share.sum())
            out.writelines(f"{' '.join(line)}.\n" for line in chosen)
            out.flush()

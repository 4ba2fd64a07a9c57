"""Words and their ids.

Ids 0 to 3 are `[pad] [bos] [eos] [unk]`, whatever the text holds. A text that spells one of them, such as a literal
`[bos]`, gets an id of its own for that word: text never acts as a control symbol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stages import files
from stages.errors import ArtifactError, LabError
from stages.text.reading import normalise

SPECIALS = ("[pad]", "[bos]", "[eos]", "[unk]")
PAD, BOS, EOS, UNK = range(4)

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


class Vocabulary:
    """The words of a language model, in the order of their ids from 4 on.

    Args:
        words: distinct words, none empty.
        counts: how often each occurs in the training text.
        lowercase: whether text is folded to lower case before its words are looked up.
    """

    def __init__(self, words: Sequence[str], counts: Sequence[int], *, lowercase: bool) -> None:
        self.words = list(words)
        self.counts = list(counts)
        self.lowercase = lowercase
        self._id_of = {word: i for i, word in enumerate(self.words, start=len(SPECIALS))}
        if len(self._id_of) != len(self.words) or len(self.words) != len(self.counts):
            raise ValueError("words must be distinct, each with one count")

    @classmethod
    def build(
        cls, sentences: Iterable[str], *, order: str, min_count: int, max_vocab: int, lowercase: bool
    ) -> Vocabulary:
        """Count the words of sentences and give them ids.

        Args:
            order: 'frequency' (equal counts by code point) or 'first_appearance'.
            min_count: rarer words are left to [unk].
            max_vocab: keep at most this many words, the most frequent ones; 0 for all.

        Raises:
            LabError: no word is left.
        """
        counts: Counter[str] = Counter()  # remembers the order of first appearance
        for sentence in sentences:
            counts.update(sentence.split())
        by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
        kept = [word for word in by_frequency if counts[word] >= min_count][: max_vocab or None]
        if not kept:
            raise LabError(f"vocabulary: no word occurs min_count = {min_count} times in the training text")
        if order == "first_appearance":
            chosen = set(kept)
            kept = [word for word in counts if word in chosen]
        return cls(kept, [counts[word] for word in kept], lowercase=lowercase)

    def __len__(self) -> int:
        return len(SPECIALS) + len(self.words)

    def encode(self, sentence: str) -> list[int]:
        """Ids of a sentence's words, without [bos] and [eos]; unknown words give [unk]."""
        return [self._id_of.get(word, UNK) for word in self.split(sentence)]

    def unknown(self, sentence: str) -> list[str]:
        """The words of a sentence that have no id, each once, in order."""
        return list(dict.fromkeys(word for word in self.split(sentence) if word not in self._id_of))

    def split(self, sentence: str) -> list[str]:
        """The words of a sentence, normalised as the corpus was."""
        return normalise(sentence, lowercase=self.lowercase).split()

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence of these ids; [pad], [bos] and [eos] are left out, [unk] is shown."""
        return " ".join(self.label(i) if i == UNK else self.words[i - len(SPECIALS)] for i in ids if i >= UNK)

    def label(self, i: int) -> str:
        """What people read for an id; a word that spells a control symbol is told apart by a backslash."""
        if i < len(SPECIALS):
            return SPECIALS[i]
        word = self.words[i - len(SPECIALS)]
        return f"\\{word}" if word.lstrip("\\") in SPECIALS else word

    def flat_ids(self, sentences: Iterable[str]) -> Ids:
        """All sentences in one array: [bos] w1 … wn [eos] [bos] …, in the narrowest type that fits."""
        ids: list[int] = []
        for sentence in sentences:
            ids += [BOS, *self.encode(sentence), EOS]
        return np.array(ids, dtype=np.uint16) if len(self) <= 2**16 else np.array(ids, dtype=np.uint32)

    def to_dict(self) -> dict[str, Any]:
        return {
            "specials": list(SPECIALS),
            "lowercase": self.lowercase,
            "words": self.words,
            "counts": self.counts,
        }

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read what `to_dict` was saved as.

        Raises:
            ArtifactError: missing, damaged, or with other control symbols.
        """
        content = files.read_json(path)
        try:
            if content["specials"] != list(SPECIALS):
                raise ArtifactError(path, f"control symbols {content['specials']}: expected {list(SPECIALS)}")
            return cls(content["words"], content["counts"], lowercase=content["lowercase"])
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(path, f"not a vocabulary ({error})") from None

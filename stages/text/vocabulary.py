"""Pieces of text and their ids.

Ids 0 to 3 are `[pad] [bos] [eos] [unk]`, whatever the text holds. A text that spells one of them, such as a literal
`[bos]`, gets ids of its own for that: text never acts as a control symbol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stages import files
from stages.errors import ArtifactError, LabError
from stages.text.reading import Form, fold, normalise, one_line_end
from stages.text.tokenizers import BYTES, LEARNED, WORDS, learn, make_tokenizer

SPECIALS = ("[pad]", "[bos]", "[eos]", "[unk]")
PAD, BOS, EOS, UNK = range(4)

Ids = npt.NDArray[Any]  # of uint16 or uint32

_CHUNK = 2**20  # ids that are held in memory at once


class TextSettings(BaseModel):
    """How a text is brought into shape and cut, for the corpus and for prompts alike.

    Attributes:
        lowercase: fold it to lower case.
        normalisation: its Unicode normal form.
        keep_spaces: white space stays as it is, as in running text; else there is one space between words.
        tokenizer: how it is cut; see `stages.text.tokenizers`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    lowercase: bool
    normalisation: Form = "NFC"
    keep_spaces: bool = False
    tokenizer: str = "word"


class _Content(TextSettings):
    """What is saved."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    specials: list[str]
    words: list[str] = Field(min_length=1)
    counts: list[int]
    model: str | None = None


class Vocabulary:
    """The pieces that a language model knows, in the order of their ids from 4 on.

    Args:
        words: distinct pieces, none empty.
        counts: how often each occurs in the training text.
        settings: how text becomes such pieces.
        model: of a tokeniser that was learned.
    """

    def __init__(
        self, words: Iterable[str], counts: Iterable[int], settings: TextSettings, model: str | None = None
    ) -> None:
        self.words, self.counts = list(words), list(counts)
        self.settings, self.model = settings, model
        self._tokenizer = make_tokenizer(settings.tokenizer, model)
        self._id_of = {word: i for i, word in enumerate(self.words, start=len(SPECIALS))}
        if len(self._id_of) != len(self.words) or len(self.words) != len(self.counts):
            raise ValueError("words must be distinct, each with one count")

    @classmethod
    def build(
        cls, units: Iterable[str], settings: TextSettings, *, order: str, min_count: int, max_vocab: int
    ) -> Vocabulary:
        """Count the pieces of a normalised training text and give them ids.

        Bytes and learned pieces have the order of their kind, and are all kept.

        Args:
            units: the text, in parts that no piece crosses; gone through twice where the tokeniser is learned.
            settings: how it is cut.
            order: 'frequency' (equal counts by code point) or 'first_appearance'.
            min_count: rarer pieces are left to [unk].
            max_vocab: keep at most this many pieces, the most frequent ones; 0 for all. Learned: learn so many.

        Raises:
            LabError: no piece is left.
        """
        kind = settings.tokenizer
        model = learn(kind, units, max_vocab, min_count) if kind in LEARNED else None
        tokenizer = make_tokenizer(kind, model)
        counts: Counter[str] = Counter()  # remembers the order of first appearance
        for unit in units:
            counts.update(tokenizer.split(unit))
        fixed = BYTES if kind == "byte" else getattr(tokenizer, "pieces", None)
        if fixed is not None:
            return cls(fixed, [counts[piece] for piece in fixed], settings, model)
        by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
        kept = [word for word in by_frequency if counts[word] >= min_count][: max_vocab or None]
        if not kept:
            raise LabError(f"vocabulary: nothing occurs min_count = {min_count} times in the training text")
        if order == "first_appearance":
            chosen = set(kept)
            kept = [word for word in counts if word in chosen]
        return cls(kept, [counts[word] for word in kept], settings)

    def __len__(self) -> int:
        return len(SPECIALS) + len(self.words)

    def normalise(self, text: str) -> str:
        """A prompt, brought into the shape of the corpus.

        A space at its end stays where spaces are pieces, so that a next word can be asked for.
        """
        settings = self.settings
        if settings.keep_spaces:
            return one_line_end(fold(text, lowercase=settings.lowercase, form=settings.normalisation))
        single = normalise(text, lowercase=settings.lowercase, form=settings.normalisation)
        return f"{single} " if single and text[-1].isspace() and settings.tokenizer not in WORDS else single

    def split(self, text: str) -> list[str]:
        """The pieces of a prompt, normalised as the corpus was."""
        return self._tokenizer.split(self.normalise(text))

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt's pieces, without [bos] and [eos]; unknown pieces give [unk]."""
        return [self._id_of.get(word, UNK) for word in self.split(text)]

    def unknown(self, text: str) -> list[str]:
        """The pieces of a prompt that have no id, each once, in order, as people read them."""
        return [self._tokenizer.show(word) for word in dict.fromkeys(self.split(text)) if word not in self._id_of]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids; [pad], [bos] and [eos] are left out, [unk] is shown."""
        return self._tokenizer.join([SPECIALS[UNK] if i == UNK else self._word(i) for i in ids if i >= UNK])

    def label(self, i: int) -> str:
        """What people read for an id; a piece that spells a control symbol is told apart by a backslash."""
        if i < len(SPECIALS):
            return SPECIALS[i]
        word = self._tokenizer.show(self._word(i))
        return f"\\{word}" if word.lstrip("\\") in SPECIALS else word

    def _word(self, i: int) -> str:
        return self.words[i - len(SPECIALS)]

    @property
    def dtype(self) -> str:
        """The narrowest type that holds every id."""
        return "uint16" if len(self) <= 2**16 else "uint32"

    def id_chunks(self, parts: Iterable[tuple[str, bool]]) -> Iterator[Ids]:
        """The ids of a normalised text, each unit from [bos] to [eos], in arrays of a bounded length.

        Args:
            parts: of units, and whether a unit ends with this part.
        """
        ids: list[int] = []
        begins, split, get = True, self._tokenizer.split, self._id_of.get
        for part, ends in parts:
            if begins:
                ids.append(BOS)
            ids += [get(piece, UNK) for piece in split(part)]
            if ends:
                ids.append(EOS)
            begins = ends
            if len(ids) >= _CHUNK:
                yield np.array(ids, dtype=self.dtype)
                ids = []
        if ids:
            yield np.array(ids, dtype=self.dtype)

    def flat_ids(self, sentences: Iterable[str]) -> Ids:
        """All sentences in one array: [bos] w1 … wn [eos] [bos] …"""
        chunks = list(self.id_chunks((sentence, True) for sentence in sentences))
        return np.concatenate(chunks) if chunks else np.array([], dtype=self.dtype)

    def to_dict(self) -> dict[str, Any]:
        learned = {} if self.model is None else {"model": self.model}
        return {
            "specials": list(SPECIALS),
            **self.settings.model_dump(),
            "words": self.words,
            "counts": self.counts,
            **learned,
        }

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `to_dict` was saved as.

        Raises:
            ArtifactError: missing, damaged, or with other control symbols.
        """
        try:
            content = _Content.model_validate(files.read_json(path))
            if content.specials != list(SPECIALS):
                raise ArtifactError(path, f"control symbols {content.specials}: expected {list(SPECIALS)}")
            settings = TextSettings.model_validate(content.model_dump(include=set(TextSettings.model_fields)))
            return cls(content.words, content.counts, settings, content.model)
        except (ValidationError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise ArtifactError(path, f"not a vocabulary ({first})") from None

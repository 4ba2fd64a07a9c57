"""Text cut into pieces, and pieces put together again.

Each tokeniser gives back the text that it cut, letter for letter; those of words give back its words with single spaces
between them. What a piece looks like in between is its own matter; `show` makes it readable.

word        the words between white space, as the notebook has them
word_punct  the same, cut further at the word boundaries of Unicode (UAX #29, section 4): marks stand apart
char        what a reader takes for one character (extended grapheme clusters, UAX #29, section 3)
byte        the bytes of UTF-8
bpe         byte pairs that are frequent in the training text, merged (Sennrich et al. 2016), down to single bytes
unigram     the pieces that a unigram model of the training text keeps (Kudo 2018), down to single bytes; learned by
            `stages.text.unigram`, since the library's own trainer gives other pieces each time
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import regex

from stages.text.unigram import learn_unigram

WORDS = ("word", "word_punct")  # those that keep no white space
LEARNED = ("bpe", "unigram")
BYTES = tuple(chr(byte) for byte in range(256))
_GLUE = "\0"  # before a piece that no space precedes; never in a text, which may not hold NUL
_SEEDS = 4  # times as many pieces to begin with (unigram)


class Tokenizer(Protocol):
    """How a text is cut."""

    def split(self, text: str) -> list[str]:
        """The pieces of a normalised text."""
        ...

    def join(self, pieces: Sequence[str]) -> str:
        """The text of these pieces; bytes that are no UTF-8 give U+FFFD."""
        ...

    def show(self, piece: str) -> str:
        """A piece for people to read: white space visible, bytes that are no text in hexadecimal."""
        ...


class Word:
    """The words between white space."""

    def split(self, text: str) -> list[str]:
        return text.split()

    def join(self, pieces: Sequence[str]) -> str:
        return " ".join(pieces)

    def show(self, piece: str) -> str:
        return piece


class WordPunct:
    """Words and marks; a mark that touches the piece before it is another piece than one that does not."""

    _boundary = regex.compile(r"(?wV1)\b")

    def split(self, text: str) -> list[str]:
        pieces = []
        for word in text.split():
            first, *others = (part for part in self._boundary.split(word) if part)
            pieces.append(first)
            pieces += [_GLUE + part for part in others]
        return pieces

    def join(self, pieces: Sequence[str]) -> str:
        return "".join(piece[1:] if piece[0] == _GLUE else f" {piece}" for piece in pieces).removeprefix(" ")

    def show(self, piece: str) -> str:
        return f"·{piece[1:]}" if piece[0] == _GLUE else piece


class Char:
    """What readers take for single characters."""

    _character = regex.compile(r"\X")

    def split(self, text: str) -> list[str]:
        return list(text) if text.isascii() else self._character.findall(text)

    def join(self, pieces: Sequence[str]) -> str:
        return "".join(pieces)

    def show(self, piece: str) -> str:
        return visible(piece)


class Byte:
    """Bytes, each as the character with its number."""

    def split(self, text: str) -> list[str]:
        return list(text.encode("utf-8").decode("latin-1"))

    def join(self, pieces: Sequence[str]) -> str:
        return _text_of(pieces).decode("utf-8", errors="replace")

    def show(self, piece: str) -> str:
        return _shown(piece.encode("latin-1"))


class Learned:
    """Pieces of bytes, as Hugging Face's library learned them from a text.

    Args:
        model: what `learn` returned.
    """

    def __init__(self, model: str) -> None:
        self.model = model

    @cached_property
    def _cutter(self) -> Any:
        return _library().Tokenizer.from_str(self.model)

    def split(self, text: str) -> list[str]:
        found: list[str] = self._cutter.encode(text, add_special_tokens=False).tokens
        return found

    def join(self, pieces: Sequence[str]) -> str:
        spelled = (_BYTE_OF.get(char, char) for piece in pieces for char in piece)
        return _text_of(spelled).decode("utf-8", errors="replace")

    def show(self, piece: str) -> str:
        return _shown(bytes(ord(_BYTE_OF[char]) for char in piece))

    @property
    def pieces(self) -> list[str]:
        """All pieces, in the order of the library's ids."""
        vocabulary = self._cutter.get_vocab()
        return sorted(vocabulary, key=vocabulary.__getitem__)


def learn(kind: str, units: Iterable[str], size: int, min_count: int) -> str:
    """Learn `size` pieces, the 256 bytes among them, from a text that is read once and not kept.

    Args:
        kind: 'bpe' or 'unigram'.
        units: the training text.
        size: of the vocabulary; it is smaller where the text has no more to give.
        min_count: pairs of pieces that are rarer than this make no piece.

    Returns:
        The library's JSON: the same for the same text.
    """
    library = _library()
    before = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "bpe":
        return _stored(_learn_bpe(library, before, units, size, min_count))
    words: Counter[str] = Counter()

    def counted() -> Iterator[str]:
        for unit in units:
            words.update(word for word, _ in before.pre_tokenize_str(unit))
            yield unit

    seeds = _learn_bpe(library, before, counted(), _SEEDS * size, min_count).get_vocab()
    cutter = _unigram(library, learn_unigram(words, seeds, size, lambda scores: _unigram(library, scores)))
    cutter.pre_tokenizer = before
    return _stored(cutter)


def _learn_bpe(library: Any, before: Any, units: Iterable[str], size: int, min_count: int) -> Any:
    cutter = library.Tokenizer(library.models.BPE())
    cutter.pre_tokenizer = before
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_count,
        initial_alphabet=sorted(before.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    cutter.train_from_iterator(units, trainer)
    return cutter


def _unigram(library: Any, scores: Mapping[str, float]) -> Any:
    """The library's tokeniser with these pieces and their log-probabilities, for words that are spelled in bytes."""
    return library.Tokenizer(library.models.Unigram(list(scores.items())))


def _stored(cutter: Any) -> str:
    return json.dumps(json.loads(cutter.to_str()), ensure_ascii=False)


def make_tokenizer(kind: str, model: str | None = None) -> Tokenizer:
    """The tokeniser of that name; `model` is what a learned one needs.

    Raises:
        ValueError: no such name, or a learned one without its model.
    """
    if kind in LEARNED:
        if model is None:
            raise ValueError(f"tokenizer {kind} without its model")
        return Learned(model)
    plain: dict[str, type[Tokenizer]] = {"word": Word, "word_punct": WordPunct, "char": Char, "byte": Byte}
    if kind not in plain:
        raise ValueError(f"no tokenizer {kind!r}")
    return plain[kind]()


def visible(text: str) -> str:
    """Spaces and line ends as signs."""
    return text.replace(" ", "␣").replace("\n", "⏎")


def _library() -> Any:
    """Hugging Face's library, imported where it is used; in one thread, since it does not take to forks otherwise."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tokenizers

    return tokenizers


def _text_of(spelled: Iterable[str]) -> bytes:
    """Bytes that are spelled as the characters with their numbers; others, as of [unk], as UTF-8."""
    return b"".join(char.encode("latin-1" if char < "\u0100" else "utf-8") for char in spelled)


def _shown(piece: bytes) -> str:
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<{byte:02X}>" for byte in piece)
    return visible(text) if text.replace("\n", "").isprintable() else "".join(f"<{byte:02X}>" for byte in piece)


def _byte_level() -> dict[str, str]:
    """How GPT-2's byte level spells bytes: printable Latin-1 as itself, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): chr(byte) for byte in printable} | {chr(0x100 + i): chr(byte) for i, byte in enumerate(others)}


_BYTE_OF = _byte_level()

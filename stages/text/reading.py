"""What text becomes before it is counted, and how later stages read what was prepared."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Literal

from stages.errors import ArtifactError

BYTE_ORDER_MARK = "\ufeff"
_CHARACTERS = 2**20  # read at once
LINE_END = "\u2028"  # stands for a line end inside a prepared unit, each of which is one line
_SEPARATORS = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # of lines, for `str.splitlines`

Form = Literal["NFC", "NFD", "NFKC", "NFKD", "none"]


def fold(text: str, *, lowercase: bool, form: Form) -> str:
    """Text of whole lines without byte-order marks, in a Unicode normal form, optionally in lower case.

    Lines stay lines: folding a text folds each of its lines.
    """
    text = text.replace(BYTE_ORDER_MARK, "")
    if form in ("NFKC", "NFKD"):  # the compatibility forms turn other characters into capitals, as in 'ᴬ'
        text = _to_form(text, form)
    if lowercase:
        text = text.lower()
    return _to_form(text, form)


def normalise(line: str, *, lowercase: bool, form: Form = "NFC") -> str:
    """One line as a sentence: folded, with single spaces between words and none at its ends.

    Every kind of white space counts as a space. A blank line gives ''.
    """
    return " ".join(fold(line, lowercase=lowercase, form=form).split())


def one_line_end(text: str) -> str:
    """Text that keeps its lines, as documents and running text do, with LF for every kind of separator."""
    return _SEPARATORS.sub("\n", text)


def _to_form(text: str, form: Form) -> str:
    if form == "none" or unicodedata.is_normalized(form, text):
        return text
    return unicodedata.normalize(form, text)


class Parts:
    """The units of a prepared split, each in one part or, where it is long, in several; can be gone through again.

    A part ends where any tokeniser may cut: at a line end, or before a space.

    Args:
        path: one unit a line, line ends within it as U+2028.
        progress: is told of every bit that was read, in bytes.
    """

    def __init__(self, path: Path, progress: Callable[[int], object] = lambda _: None) -> None:
        self._path, self._progress = path, progress

    def __iter__(self) -> Iterator[str]:
        return (part for part, _ in self.with_ends())

    def with_ends(self) -> Iterator[tuple[str, bool]]:
        """Each part, and whether its unit ends with it."""
        rest, read = "", 0
        try:
            with open(self._path, "rb") as raw, TextIOWrapper(raw, encoding="utf-8", newline="\n") as file:
                while text := file.read(_CHARACTERS):
                    *whole, rest = (rest + text).split("\n")
                    for unit in whole:
                        yield unit.replace(LINE_END, "\n"), True
                    if len(rest) >= _CHARACTERS:
                        rest = rest.replace(LINE_END, "\n")
                        cut = max(rest.rfind("\n") + 1, rest.rfind(" "))
                        if cut > 0:
                            yield rest[:cut], False
                            rest = rest[cut:]
                    self._progress(raw.tell() - read)
                    read = raw.tell()
        except FileNotFoundError:
            raise ArtifactError(self._path, "not there; `dvc repro` makes it, `dvc checkout` restores it") from None
        except UnicodeDecodeError as error:
            problem = f"not what stage prepare writes ({error}); `dvc repro -f` makes it anew"
            raise ArtifactError(self._path, problem) from None
        if rest:
            yield rest.replace(LINE_END, "\n"), True

"""What text becomes before it is counted, and how later stages read the prepared sentences."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from stages.errors import ArtifactError

BYTE_ORDER_MARK = "\ufeff"
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


def read_units(path: Path) -> Iterator[str]:
    """The units of a prepared split, one after another: sentences, paragraphs, documents, or one running text.

    Raises:
        ArtifactError: no such file, or not UTF-8 (prepare writes nothing else).
    """
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.removesuffix("\n").replace(LINE_END, "\n")
    except FileNotFoundError:
        raise ArtifactError(path, "not there; `dvc repro` makes it, `dvc checkout` restores it") from None
    except UnicodeDecodeError as error:
        raise ArtifactError(path, f"not what stage prepare writes ({error}); `dvc repro -f` makes it anew") from None

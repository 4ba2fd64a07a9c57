"""Lines of text out of a file, and what a line becomes before it is counted as a sentence."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from stages.errors import CorpusError

BYTE_ORDER_MARK = "\ufeff"


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file, ended by LF, CR LF or CR; a last line without an end counts.

    Raises:
        CorpusError: no such file, a folder, or bytes that are not UTF-8 (with their line and offset).
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CorpusError(path, "no such file; `corpus` in params.yaml names it") from None
    except IsADirectoryError:
        raise CorpusError(path, "a folder; `corpus` expects one file of text") from None
    except OSError as error:
        raise CorpusError(path, f"cannot be read: {error.strerror}") from None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = len(re.findall(rb"\r\n|\r|\n", content[: error.start])) + 1
        problem = f"byte {error.start} (0x{content[error.start]:02x}) is not UTF-8; convert the file to UTF-8"
        raise CorpusError(path, problem, line=line) from None
    lines = re.split(r"\r\n|\r|\n", text)
    return lines[:-1] if not lines[-1] else lines


def normalise(line: str, *, lowercase: bool) -> str:
    """One line as a sentence: no byte-order marks, NFC, optionally lower case, single spaces between words.

    Every kind of white space counts as a space. A blank line gives ''.
    """
    line = line.replace(BYTE_ORDER_MARK, "")
    if lowercase:
        line = line.lower()
    return " ".join(unicodedata.normalize("NFC", line).split())

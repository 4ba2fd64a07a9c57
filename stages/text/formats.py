"""The files of a corpus, and the records in them.

A corpus is a file or a folder. The suffix inside that of an archive says what a file is:

| suffix | read as |
|---|---|
| `.tsv` `.tab` | a table whose lines are records and whose cells end at tabs; quotation marks are text |
| `.csv` | a table with commas as in RFC 4180: a field in quotation marks may hold commas, line ends and `""` |
| `.jsonl` `.ndjson` | one JSON object a line, with the text under `text_field` |
| `.conllu` | a treebank; each sentence as its surface spells it |
| `.txt` `.text` `.md` | text; so is a single file of any other suffix, while a folder's are skipped |

Tables: a `text_column` that is a number counts columns from 1 and takes every row for a record, the first too; a name
is looked up in the first row, which then is a header and no record. Without one, a column called `text` is taken, or
the only column.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import conllu
from conllu.exceptions import ParseException

from stages.errors import CorpusError
from stages.text.opening import first_surrogate, place, suffix_inside

KINDS = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".conllu": "conllu",
}
_LONGEST_FIELD = 2**31 - 1  # of a CSV; Python's own limit is 128 KiB
_BAD_ESCAPE = re.compile(
    r"\\u0000|\\u[dD][89abAB][\da-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][\da-fA-F]{2})\\u[dD][c-fC-F]"
)


@dataclass(frozen=True)
class Source:
    """A file of the corpus.

    Attributes:
        name: its path below the folder that is the corpus, or its own name.
        kind: one of the values of KINDS.
    """

    path: Path
    name: str
    kind: str


def find_sources(corpus: Path) -> tuple[list[Source], list[str]]:
    """The files of a corpus in the order of the code points of their names, and the names of what is skipped.

    Skipped in a folder are hidden files, files of another suffix, links to folders, and what is no file.

    Raises:
        CorpusError: nothing to read in the folder.
    """
    try:
        return _files_of(corpus) if corpus.is_dir() else ([_only(corpus)], [])
    except OSError as error:
        raise CorpusError(corpus, f"cannot be read: {error.strerror}") from None


def _only(corpus: Path) -> Source:
    return Source(corpus, _printable(corpus.name), KINDS.get(suffix_inside(corpus), "text"))


def _files_of(corpus: Path) -> tuple[list[Source], list[str]]:
    sources, skipped = [], []
    for path in corpus.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            continue
        inside = path.relative_to(corpus)
        name = _printable(inside.as_posix())
        kind = KINDS.get(suffix_inside(inside))
        if kind is None or not path.is_file() or any(part.startswith(".") for part in inside.parts):
            skipped.append(name)
        else:
            sources.append(Source(path, name, kind))
    if not sources:
        known = " ".join(KINDS)
        raise CorpusError(corpus, f"none of its {len(skipped)} file(s) is visible and of a known kind ({known})")
    return sorted(sources, key=lambda source: source.name), sorted(skipped)


def _printable(name: str) -> str:
    """A file name whose bytes are no UTF-8 cannot be written as it is."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def whole_lines(texts: Iterable[str], *, cut_at_spaces: bool = False) -> Iterator[str]:
    """The same text in blocks that end where lines end, or where the text does.

    Args:
        cut_at_spaces: cut before a space where a block holds no line end, so that no line is held whole. Neither case
            nor normal forms depend on what is on the other side of a space.
    """
    gathered: list[str] = []
    for text in texts:
        end = text.rfind("\n") + 1
        if not end and cut_at_spaces:
            end = max(0, text.rfind(" "))
        if end:
            yield "".join([*gathered, text[:end]])
            gathered = []
        gathered.append(text[end:])
    if rest := "".join(gathered):
        yield rest


def read_records(
    source: Source, texts: Iterable[str], *, encoding: str, text_column: str, text_field: str
) -> Iterator[str | None]:
    """The texts of the records of a table, a JSONL file or a treebank; '' for a blank line, None for one without text.

    Args:
        texts: the characters of the file, lines ended by LF, without byte-order marks (which would stick to the first
            key or name).

    Raises:
        CorpusError: a record that cannot be read, by its line, or a table without the column that is asked for.
    """
    lines = _lines(texts)
    if source.kind == "jsonl":
        return _json_lines(source.path, lines, encoding, text_field)
    if source.kind == "conllu":
        return _surfaces(source.path, lines)
    rows = _comma_separated(source.path, lines) if source.kind == "csv" else _tab_separated(lines)
    return _cells(source.path, rows, text_column)


def _lines(texts: Iterable[str]) -> Iterator[str]:
    for block in whole_lines(texts):
        yield from block.removesuffix("\n").split("\n")


# --- tables -----------------------------------------------------------------------------------------------------------


def _tab_separated(lines: Iterable[str]) -> Iterator[list[str]]:
    for line in lines:
        yield line.split("\t") if line.strip(" ") else []


def _comma_separated(path: Path, lines: Iterable[str]) -> Iterator[list[str]]:
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    while True:
        start = reader.line_num + 1
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = (
                f'a broken record ({error}); a field in quotation marks ends with one, and "" stands for one inside'
            )
            raise CorpusError(path, problem, line=start) from None


def _cells(path: Path, rows: Iterator[list[str]], text_column: str) -> Iterator[str | None]:
    column: int | None = None
    for row in rows:
        if not row:
            yield ""
            continue
        if column is None:
            column, header = _choose_column(path, row, text_column)
            if header:
                continue
        text = row[column] if column < len(row) else ""
        yield None if not text or text.isspace() else text


def _choose_column(path: Path, first: list[str], text_column: str) -> tuple[int, bool]:
    """The place of the column with the text, and whether the first row is a header."""
    if text_column.isdecimal():
        if 1 <= int(text_column) <= len(first):
            return int(text_column) - 1, False
    else:
        names = [cell.strip() for cell in first]
        if (name := text_column or "text") in names:
            return names.index(name), True
        if not text_column and len(first) == 1:
            return 0, False
    shown = ", ".join(repr(cell if len(cell) <= 30 else f"{cell[:29]}…") for cell in first[:20])
    more = ", …" if len(first) > 20 else ""
    raise CorpusError(
        path,
        f"no such column: text_column = '{text_column}' in params.yaml: expected a name in the first row "
        f"({shown}{more}) or a number from 1 to {len(first)}",
        line=1,
    )


# --- one object a line ------------------------------------------------------------------------------------------------


def _json_lines(path: Path, lines: Iterable[str], encoding: str, field: str) -> Iterator[str | None]:
    for number, line in enumerate(lines, start=1):
        if not line or line.isspace():
            yield ""
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise CorpusError(path, f"not JSON: {error.msg} (character {error.colno})", line=number) from None
        except (ValueError, RecursionError) as error:  # a number of 5000 digits, brackets 1000 deep
            raise CorpusError(path, f"not to be read as JSON: {error}", line=number) from None
        if not isinstance(record, dict):
            raise CorpusError(path, f"a JSON {_json_type(record)}: expected an object in each line", line=number)
        text = record.get(field)
        if text is None:
            yield None
        elif not isinstance(text, str):
            problem = f"`{field}` is a JSON {_json_type(text)}: expected a string (text_field in params.yaml names it)"
            raise CorpusError(path, problem, line=number)
        elif "\0" in text or first_surrogate(text) is not None:
            raise _bad_escape(path, line, encoding, number)
        else:
            yield None if not text or text.isspace() else text


def _json_type(value: object) -> str:
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _bad_escape(path: Path, line: str, encoding: str, number: int) -> CorpusError:
    found = _BAD_ESCAPE.search(line)
    start, _ = place(path, encoding, line=number)
    offset = start + len(line[: found.start() if found else 0].encode(encoding))
    what = "a NUL character" if found and found[0] == r"\u0000" else "a lone surrogate"
    escape = f" ({line[found.start() : found.start() + 6]})" if found else ""
    return CorpusError(path, f"byte {offset} escapes {what}{escape}, which is no text; mend the record", line=number)


# --- treebanks --------------------------------------------------------------------------------------------------------


def _surfaces(path: Path, lines: Iterable[str]) -> Iterator[str | None]:
    """The sentences of a treebank in CoNLL-U as they are spelt: ranges of words once, no empty nodes, no comments."""
    gathered: list[str] = []
    start = 1
    for number, line in enumerate(chain(lines, [""]), start=1):
        if line.strip():
            gathered.append(line)
            continue
        if gathered:
            yield _surface(path, gathered, start)
        gathered, start = [], number + 1


def _surface(path: Path, lines: list[str], start: int) -> str | None:
    try:
        sentences = conllu.parse("\n".join(lines))
    except (ParseException, ValueError, IndexError) as error:
        problem = f"the sentence that begins here is not CoNLL-U ({' '.join(str(error).split())})"
        raise CorpusError(path, problem, line=start) from None
    text, last = "", 0
    for token in (token for sentence in sentences for token in sentence):
        number, form = token["id"], token.get("form")
        if isinstance(number, tuple):
            if number[1] != "-":
                continue  # an empty node, which is not spelt
            last = number[2]
        elif number <= last:
            continue  # a word inside a range
        if not isinstance(form, str):
            raise CorpusError(path, f"token {number} of the sentence that begins here has no form", line=start)
        text += form if (token.get("misc") or {}).get("SpaceAfter") == "No" else f"{form} "
    return text.rstrip() or None

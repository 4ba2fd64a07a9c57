"""What a corpus becomes: units, written one a line while the corpus is read, ranked for the splits, and counted.

Inside a unit a line end is written as U+2028 (`reading.Parts` turns it back). The running text of `stream` is
one unit of any length: it is written as it is, for `routing` to cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from operator import ne
from typing import BinaryIO

from stages.text.reading import BYTE_ORDER_MARK, LINE_END, Form, fold, one_line_end
from stages.text.splitting import RANK_BYTES, rank, salt


@dataclass
class Counts:
    """What was read: lines of text, and records of tables, JSONL and treebanks.

    `lines_read` = `lines_used` + `blank_lines_dropped` + `records_without_text`, where a record is one line.
    """

    lines_read: int = 0
    lines_used: int = 0
    blank_lines_dropped: int = 0
    records_without_text: int = 0
    sentences_used: int = 0
    byte_order_marks_removed: int = 0
    lines_changed_by_normalisation: int = 0
    words: int = 0
    longest_sentence_in_words: int = 0


class Units:
    """Base of what takes text in and writes units out.

    Args:
        out: where the units are written, UTF-8.
        seed: of the ranks.

    Attributes:
        ranks: one of RANK_BYTES for each unit.
    """

    cut_at_spaces = False  # whether blocks may end at a space; see `formats.whole_lines`
    not_by_file: tuple[str, ...] = ("longest_sentence_in_words",)  # counts that are no sums over files

    def __init__(self, out: BinaryIO, *, seed: int, lowercase: bool, form: Form) -> None:
        self.counts = Counts()
        self.ranks = bytearray()
        self._out = out
        self._salt = salt(seed)
        self._lowercase, self._form = lowercase, form

    def without_marks(self, text: str) -> str:
        """The same text without byte-order marks, which are counted."""
        marks = text.count(BYTE_ORDER_MARK)
        self.counts.byte_order_marks_removed += marks
        return text.replace(BYTE_ORDER_MARK, "") if marks else text

    def text(self, block: str) -> None:
        """Take in a block of whole lines."""
        raise NotImplementedError

    def record(self, text: str | None) -> None:
        """Take in the text of a record; '' is a blank line, None a record without text."""
        if text:
            self._record(text.replace("\r\n", "\n").replace("\r", "\n"))
            return
        self.counts.lines_read += 1
        if text is None:
            self.counts.records_without_text += 1
        else:
            self.counts.blank_lines_dropped += 1

    def end_file(self) -> None:
        """The text of a file ends here, and with it its last line."""

    def close(self) -> None:
        """The corpus ends here."""

    def since(self, before: Counts) -> dict[str, int]:
        """What a file has added to the counts."""
        earlier, now = asdict(before), asdict(self.counts)
        return {key: now[key] - earlier[key] for key in now if key not in self.not_by_file}

    def _record(self, text: str) -> None:
        raise NotImplementedError

    def _fold(self, text: str) -> str:
        return fold(self.without_marks(text), lowercase=self._lowercase, form=self._form)

    def _squeeze(self, lines: list[str]) -> list[str]:
        """Each line as `reading.normalise` makes it, counted."""
        squeezed = [" ".join(line.split()) for line in self._fold("\n".join(lines)).split("\n")]
        blank = squeezed.count("")
        counts = self.counts
        counts.lines_read += len(lines)
        counts.lines_used += len(lines) - blank
        counts.blank_lines_dropped += blank
        changed_to_nothing = blank - lines.count("")
        counts.lines_changed_by_normalisation += sum(map(ne, lines, squeezed)) - changed_to_nothing
        return squeezed

    def _write(self, sentences: Iterable[str]) -> None:
        """Write units of single spaces."""
        encoded = [sentence.encode() for sentence in sentences]
        if not encoded:
            return
        before = self._salt
        self.ranks += b"".join([rank(before + sentence) for sentence in encoded])
        self._out.write(b"\n".join(encoded) + b"\n")
        spaces = [sentence.count(b" ") for sentence in encoded]
        self.counts.sentences_used += len(encoded)
        self.counts.words += sum(spaces) + len(encoded)
        self.counts.longest_sentence_in_words = max(self.counts.longest_sentence_in_words, max(spaces) + 1)


class Lines(Units):
    """Each line is a sentence, and each record is."""

    def text(self, block: str) -> None:
        self._write(filter(None, self._squeeze(block.removesuffix("\n").split("\n"))))

    def _record(self, text: str) -> None:
        self._write(filter(None, self._squeeze([text.replace("\n", " ")])))


class Paragraphs(Units):
    """The lines up to a blank one are a sentence, which is held whole; a record has paragraphs of its own."""

    def __init__(self, out: BinaryIO, *, seed: int, lowercase: bool, form: Form) -> None:
        super().__init__(out, seed=seed, lowercase=lowercase, form=form)
        self._begun: list[str] = []

    def text(self, block: str) -> None:
        self._gather(self._squeeze(block.removesuffix("\n").split("\n")))

    def end_file(self) -> None:
        self._gather([""])

    def _record(self, text: str) -> None:
        (squeezed,) = self._squeeze([text.replace("\n", " ")])  # counted as the one line that it is
        if squeezed:
            folded = fold(text, lowercase=self._lowercase, form=self._form)
            self._gather([*(" ".join(line.split()) for line in folded.split("\n")), ""])

    def _gather(self, squeezed: list[str]) -> None:
        ended = []
        for line in squeezed:
            if line:
                self._begun.append(line)
            elif self._begun:
                ended.append(" ".join(self._begun))
                self._begun = []
        self._write(ended)


class Trim:
    """Takes white space off the ends of a text that comes in pieces."""

    def __init__(self) -> None:
        self.begun = False
        self.held = ""  # white space that is the end, unless more comes

    def push(self, piece: str) -> str:
        """What is certain to stay."""
        body = piece.rstrip()
        if not body:
            self.held += piece if self.begun else ""
            return ""
        before, self.held = self.held, piece[len(body) :]
        if not self.begun:
            self.begun = True
            return body.lstrip()
        return before + body


class Kept(Units):
    """Text that keeps its lines and spaces, but not those at its very ends, and is written piece by piece."""

    cut_at_spaces = True

    def __init__(self, out: BinaryIO, *, seed: int, lowercase: bool, form: Form) -> None:
        super().__init__(out, seed=seed, lowercase=lowercase, form=form)
        self._line_open = self._line_changed = False  # of the last line so far
        self._start()

    def text(self, block: str) -> None:
        folded = self._fold(block)
        changed = [False]
        if folded != block:
            changed = list(map(ne, block.split("\n"), folded.split("\n")))
            counted = self._line_open and self._line_changed and changed[0]  # with an earlier piece of the line
            self.counts.lines_changed_by_normalisation += sum(changed) - counted
        self._line_changed = changed[-1] or (self._line_open and self._line_changed and "\n" not in block)
        self.counts.lines_read += block.count("\n")
        self._line_open = not block.endswith("\n")
        self._push(folded)

    def end_file(self) -> None:
        if self._line_open:
            self.counts.lines_read += 1
            self._line_open = False
            self._push("\n")

    def _start(self) -> None:
        self._trim = Trim()
        self._hash = hashlib.sha256(self._salt)
        self._words = 0

    def _push(self, folded: str) -> None:
        if not self._trim.begun:
            self.counts.blank_lines_dropped += folded[: len(folded) - len(folded.lstrip())].count("\n")
        if piece := self._trim.push(folded):
            encoded = self._encode(one_line_end(piece))
            self._words += len(piece.split())
            self._hash.update(encoded)
            self._out.write(encoded)

    def _encode(self, piece: str) -> bytes:
        return piece.replace("\n", LINE_END).encode()

    def _end_unit(self) -> None:
        if not self._trim.begun:
            return
        self.counts.blank_lines_dropped += max(0, self._trim.held.count("\n") - 1)  # the first ends the last line
        self._out.write(b"\n")
        self.ranks += self._hash.digest()[:RANK_BYTES]
        self.counts.sentences_used += 1
        self.counts.words += self._words
        self.counts.longest_sentence_in_words = max(self.counts.longest_sentence_in_words, self._words)
        self._start()

    def _settle(self) -> None:
        counts = self.counts
        counts.lines_used = counts.lines_read - counts.blank_lines_dropped - counts.records_without_text

    def _record(self, text: str) -> None:
        self.counts.lines_read += 1
        folded = self._fold(text).strip()
        self.counts.lines_changed_by_normalisation += bool(folded) and folded != text
        if folded:
            self._push(f"{folded}\n")
        else:
            self.counts.blank_lines_dropped += 1


class Documents(Kept):
    """Each file of text is a unit, and each record is."""

    def end_file(self) -> None:
        super().end_file()
        self._end_unit()
        self._settle()

    def _record(self, text: str) -> None:
        super()._record(text)
        self._end_unit()


class Stream(Kept):
    """All text is one unit, in which files and records follow each other as lines; its line ends stay as they are."""

    # Nor counts that are known at the end alone.
    not_by_file = (*Units.not_by_file, "lines_used", "blank_lines_dropped", "sentences_used", "words")

    def close(self) -> None:
        self._end_unit()
        self._settle()

    def _encode(self, piece: str) -> bytes:
        return piece.encode()


UNITS: dict[str, type[Units]] = {"line": Lines, "paragraph": Paragraphs, "document": Documents, "stream": Stream}

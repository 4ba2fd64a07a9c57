"""The characters of a file: unpacked, decoded, checked, with every line ended by LF.

Nothing here holds more than a block of the file. Archives are known by their first bytes, whatever they are called.
"""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from encodings.aliases import aliases
from pathlib import Path, PurePath
from typing import Any

import zstandard

from stages.errors import CorpusError, ParamError, nearest

BLOCK = 2**18  # bytes that are decoded at once
_PACKED_BLOCK = 2**10  # what zstd makes of so few bytes is at most 32 MiB, and less from the others
_HINT_BYTES = 2**16  # enough to guess an encoding from

_Progress = Callable[[int], Any]

_ARCHIVES: list[tuple[str, bytes, Callable[[], Any]]] = [  # name, first bytes, unpacker of one part
    ("gzip", rb"\x1f\x8b\x08", lambda: zlib.decompressobj(wbits=31)),
    ("xz", rb"\xfd7zXZ\x00", lzma.LZMADecompressor),
    ("bzip2", rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", bz2.BZ2Decompressor),
    ("zstd", rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", lambda: zstandard.ZstdDecompressor().decompressobj()),
]
_PACKED_SUFFIXES = {".gz", ".xz", ".bz2", ".zst", ".zstd"}


def suffix_inside(path: PurePath) -> str:
    """The suffix that names the format, in lower case and without that of an archive: `.tsv` of `a.TSV.gz`."""
    packed = path.suffix.lower() in _PACKED_SUFFIXES
    return (PurePath(path.stem) if packed else path).suffix.lower()


def check_encoding(name: str) -> None:
    """
    Raises:
        ParamError: Python knows no such encoding of text.
    """
    try:
        info = codecs.lookup(name)
        if info._is_text_encoding and info.incrementaldecoder is not None and info.name != "undefined":
            return
    except (LookupError, ValueError):  # a name with a NUL is a ValueError
        pass
    known = {alias.replace("_", "-") for alias in [*aliases, *aliases.values()]}
    hint = nearest(name.lower().replace("_", "-"), known)
    raise ParamError("encoding", f' = "{name}": expected an encoding of text that Python knows{hint}')


def read_bytes(path: Path, progress: _Progress = lambda _: None) -> Iterator[bytes]:
    """The content of a file in blocks, unpacked if it is a gzip, xz, bzip2 or zstd archive of one or more parts.

    Args:
        progress: told the number of bytes of each block as they lie in the file.

    Raises:
        CorpusError: it cannot be read, or is an archive that is cut short or damaged.
    """
    try:
        with open(path, "rb") as file:
            start = file.peek(16)
            kind, new = next(((name, new) for name, magic, new in _ARCHIVES if re.match(magic, start)), ("", None))
            if not start and path.suffix.lower() in _PACKED_SUFFIXES:
                raise CorpusError(path, "is empty, and so no archive")

            def blocks(size: int) -> Iterator[bytes]:
                while block := file.read(size):
                    progress(len(block))
                    yield block

            yield from blocks(BLOCK) if new is None else _unpack(path, kind, new, blocks(_PACKED_BLOCK))
    except FileNotFoundError:
        raise CorpusError(path, "no such file or folder; `corpus` in params.yaml names it") from None
    except OSError as error:
        raise CorpusError(path, f"cannot be read: {error.strerror}") from None


def _unpack(path: Path, kind: str, new: Callable[[], Any], blocks: Iterator[bytes]) -> Iterator[bytes]:
    part, gathered, size = new(), [], 0
    for block in blocks:
        while block:
            if part is None:
                block = block.lstrip(b"\0")  # what tapes, and xz itself, fill up with
                if not block:
                    break
                part = new()
            try:
                gathered.append(part.decompress(block))
            except (OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
                raise CorpusError(path, f"a damaged {kind} archive ({error}); get it anew") from None
            size += len(gathered[-1])
            if size >= BLOCK:
                yield b"".join(gathered)
                gathered, size = [], 0
            block, part = (part.unused_data, None) if part.eof else (b"", part)
    if part is not None:
        raise CorpusError(path, f"a {kind} archive that is cut short; get it anew")
    yield b"".join(gathered)


def read_text(path: Path, encoding: str, progress: _Progress = lambda _: None) -> Iterator[str]:
    """The characters of a file in blocks; CR LF and CR are LF. Byte-order marks are left in.

    Raises:
        CorpusError: as `read_bytes`; also bytes that the encoding does not have, NUL characters and lone surrogates,
            with their line and their byte in the unpacked file.
    """
    decoder, newlines = codecs.getincrementaldecoder(encoding)("strict"), _newlines()
    n_bytes = n_characters = 0
    for block in _and_end(read_bytes(path, progress)):
        n_bytes += len(block)
        try:
            text = decoder.decode(block, not block)
        except UnicodeDecodeError as error:
            # The decoder joins what it had kept of the block before with this one.
            raise _undecodable(path, encoding, n_bytes - len(error.object) + error.start, error) from None
        except UnicodeError as error:
            raise CorpusError(path, f"is not {encoding} ({error}){_hint(path, encoding, 0)}") from None
        text = newlines.decode(text, final=not block)
        if (at := _first_forbidden(text)) is not None:
            raise _forbidden(path, encoding, n_characters + at, text[at])
        n_characters += len(text)
        if text:
            yield text


def place(path: Path, encoding: str, *, character: int = -1, line: int = 0) -> tuple[int, int]:
    """Where a character lies (counted from 0, CR LF as one), or where a line begins (counted from 1).

    Returns:
        Its byte in the unpacked file, counted from 0, and its line, from 1. Reads the file anew: for errors alone.
    """
    if line == 1:
        return 0, 1
    decoder, newlines = codecs.getincrementaldecoder(encoding)("strict"), _newlines()
    n_bytes = n_characters = n_lines = 0

    def reached(text: str) -> bool:
        return n_characters + len(text) > character >= 0 or n_lines + text.count("\n") >= line - 1 >= 0

    for block in read_bytes(path):
        before = decoder.getstate(), newlines.getstate()
        text = newlines.decode(decoder.decode(block))
        if reached(text):
            decoder.setstate(before[0])
            newlines.setstate(before[1])
            start = n_bytes - len(before[0][0])  # the bytes of a character that has begun
            for i in range(len(block)):
                raw = decoder.decode(block[i : i + 1])
                text = newlines.decode(raw)
                if reached(text):
                    if character >= 0:
                        return start, n_lines + text.count("\n") + 1 - (text[-1] == "\n")
                    return (n_bytes + i + 1 if text.endswith("\n") else start), line
                start = n_bytes + i + 1 if raw else start
                n_characters, n_lines = n_characters + len(text), n_lines + text.count("\n")
        n_bytes, n_characters, n_lines = n_bytes + len(block), n_characters + len(text), n_lines + text.count("\n")
    return n_bytes, n_lines + 1


def _newlines() -> io.IncrementalNewlineDecoder:
    return io.IncrementalNewlineDecoder(None, translate=True)


def _and_end(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks that hold something, then an empty one, with which a decoder closes."""
    yield from filter(None, blocks)
    yield b""


def first_surrogate(text: str) -> int | None:
    """Where the first lone surrogate stands, which no encoding can write."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None


def _first_forbidden(text: str) -> int | None:
    at = text.find("\0")
    return at if at >= 0 else first_surrogate(text)


def _forbidden(path: Path, encoding: str, character: int, found: str) -> CorpusError:
    offset, line = place(path, encoding, character=character)
    what = "a NUL character" if found == "\0" else f"the lone surrogate U+{ord(found):04X}"
    return CorpusError(path, f"byte {offset} is {what}, which is no text{_hint(path, encoding, offset)}", line=line)


def _undecodable(path: Path, encoding: str, offset: int, error: UnicodeDecodeError) -> CorpusError:
    name = "UTF-8" if codecs.lookup(encoding).name == "utf-8" else encoding
    line = _line_at(path, encoding, offset)
    byte = error.object[error.start]
    if error.reason in ("unexpected end of data", "truncated data", "incomplete multibyte sequence"):
        return CorpusError(path, f"byte {offset} (0x{byte:02x}) begins a character that the file cuts short", line=line)
    return CorpusError(path, f"byte {offset} (0x{byte:02x}) is not {name}{_hint(path, encoding, offset)}", line=line)


def _line_at(path: Path, encoding: str, offset: int) -> int:
    """The line of a byte, all before which can be decoded."""
    decoder, newlines = codecs.getincrementaldecoder(encoding)("strict"), _newlines()
    n_lines, left = 1, offset
    for block in read_bytes(path):
        n_lines += newlines.decode(decoder.decode(block[:left])).count("\n")
        left -= len(block)
        if left <= 0:
            break
    return n_lines + newlines.decode("", final=True).count("\n")


def _hint(path: Path, encoding: str, offset: int) -> str:
    """What the encoding may be, guessed from the bytes around a place."""
    from charset_normalizer import from_bytes  # slow to load, and seldom needed

    sample, at = b"", 0
    for block in read_bytes(path):
        at += len(block)
        sample = (sample + block)[-_HINT_BYTES - len(block) :]
        if at >= offset + _HINT_BYTES // 2:
            break
    start = max(0, offset - _HINT_BYTES // 2 - (at - len(sample))) // 4 * 4  # characters of four bytes stay whole
    sample = sample[start : start + _HINT_BYTES]
    telling = b"\n".join(line for line in sample.splitlines() if not line.isascii())
    likely = list(dict.fromkeys(match.encoding for match in from_bytes(sample if b"\0" in sample else telling)))
    known = codecs.lookup(encoding).name.replace("-", "_") in likely  # nothing better than what it was read as
    guess = f" (it looks like {' or '.join(likely[:3])})" if likely and not known else ""
    return f"; name its encoding as `encoding` in params.yaml{guess}, or mend the file"

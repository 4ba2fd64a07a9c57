"""The characters of a file, whatever archive, encoding and line ends it came in."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import CorpusError, ParamError
from stages.text import opening
from stages.text.opening import check_encoding, place, read_bytes, read_text, suffix_inside

TEXT = "el perro come pan\nla niña bebe agua\n"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda raw: gzip.compress(raw, mtime=0),
    "xz": lzma.compress,
    "bzip2": bz2.compress,
    "zstd": lambda raw: zstandard.ZstdCompressor().compress(raw),
}


def written(folder: Path, raw: bytes, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


def whole(path: Path, encoding: str = "utf-8") -> str:
    return "".join(read_text(path, encoding))


def refusal(path: Path, encoding: str = "utf-8") -> str:
    with pytest.raises(CorpusError) as caught:
        whole(path, encoding)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(path))


# --- archives ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("raw", [b"", TEXT.encode(), TEXT.encode() * 40_000], ids=["empty", "short", "long"])
def test_archives_are_known_by_their_content(kind: str, raw: bytes, tmp_path: Path) -> None:
    path, told = written(tmp_path, PACKERS[kind](raw)), []
    assert b"".join(read_bytes(path, told.append)) == raw
    assert sum(told) == path.stat().st_size
    assert all(len(block) < opening.BLOCK + 2**25 for block in read_bytes(path))


@pytest.mark.parametrize("kind", PACKERS)
def test_archives_of_several_parts_are_read_to_the_end(kind: str, tmp_path: Path) -> None:
    parts = [PACKERS[kind](part.encode()) for part in ("uno\n", "", "dos\n")]
    assert whole(written(tmp_path, b"".join(parts))) == "uno\ndos\n"
    padding = b"" if kind in ("bzip2", "zstd") else b"\0" * 8
    assert whole(written(tmp_path, padding.join([*parts, b""]))) == "uno\ndos\n"


@pytest.mark.parametrize("kind", PACKERS)
def test_archives_cut_short_or_damaged_are_refused(kind: str, tmp_path: Path) -> None:
    noise = "".join(chr(97 + i * i * 7919 % 26) for i in range(5000)).encode()
    packed = PACKERS[kind](noise)
    for end in (len(packed) // 2, len(packed) - 1):
        assert refusal(written(tmp_path, packed[:end])) == f": a {kind} archive that is cut short; get it anew"
    assert f": a damaged {kind} archive (" in refusal(written(tmp_path, packed + b"more of it"))
    if kind != "zstd":  # whose default has no checksum
        middle = len(packed) // 2
        spoilt = packed[:middle] + bytes([packed[middle] ^ 0x55]) + packed[middle + 1 :]
        assert re.match(f": a (damaged )?{kind} archive", refusal(written(tmp_path, spoilt)))


def test_the_name_of_an_archive_does_not_make_it_one(tmp_path: Path) -> None:
    assert whole(written(tmp_path, TEXT.encode(), "text.txt.gz")) == TEXT
    assert whole(written(tmp_path, b"BZh is no magic", "text.txt")) == "BZh is no magic"
    assert refusal(written(tmp_path, b"", "text.txt.gz")) == ": is empty, and so no archive"


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("a.txt", ".txt"), ("a.TSV.gz", ".tsv"), ("a.b.jsonl.zst", ".jsonl"), ("1984", ""), ("a.gz", ""), (".gz", "")],
)
def test_the_suffix_inside_decides(name: str, suffix: str) -> None:
    assert suffix_inside(Path("some.folder") / name) == suffix


def test_zstd_with_skippable_frames(tmp_path: Path) -> None:
    frame = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    assert whole(written(tmp_path, frame + PACKERS["zstd"](TEXT.encode()))) == TEXT


# --- characters -------------------------------------------------------------------------------------------------------


@given(st.text(st.sampled_from("añ犬😀\ufeff\r\n \u2028\x85"), max_size=30), st.integers(1, 7))
def test_line_ends_are_lf_wherever_blocks_end(text: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(opening, "BLOCK", size)
        for encoding in ("utf-8", "utf-16", "utf-32-be", "gb18030", "utf-7"):
            path = written(Path(folder), text.encode(encoding))
            assert whole(path, encoding) == io.StringIO(text, newline=None).read()


@pytest.mark.parametrize("block", [1, 2, 3, 5, 2**18])
@pytest.mark.parametrize(
    ("raw", "line", "byte"),
    [
        ("hola\nadiós\n".encode("latin-1"), 2, 8),
        (b"a\rb\r\xff\xfe", 3, 4),
        (b"a\r\nb\r\n\r\n\xc0c", 4, 8),
        ("ñandú\n".encode() + b"\xed\xa0\x80", 2, 8),  # a lone surrogate in UTF-8's way
        (b"\x92", 1, 0),
    ],
)
def test_bytes_that_cannot_be_decoded_are_refused_with_their_place(
    raw: bytes, line: int, byte: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "BLOCK", block)
    said = refusal(written(tmp_path, raw))
    assert said.startswith(
        f", line {line}: byte {byte} (0x{raw[byte]:02x}) is not UTF-8; name its encoding as `encoding`"
    )


@pytest.mark.parametrize("block", [1, 4, 2**18])
def test_a_file_cut_inside_a_character_is_refused(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "BLOCK", block)
    said = refusal(written(tmp_path, "uno\r\ndos\r\ntres ñ".encode()[:-1]))
    assert said == ", line 3: byte 15 (0xc3) begins a character that the file cuts short"
    assert refusal(written(tmp_path, "a犬".encode("utf-16-le")[:-1]), "utf-16-le").startswith(", line 1: byte 2 (0x")


@pytest.mark.parametrize("block", [1, 3, 2**18])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "latin-1", "gb18030"])
def test_nul_is_refused_with_its_place(
    encoding: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "BLOCK", block)
    before = "uno ñ\r\ndos\rtré\n\nx"
    said = refusal(written(tmp_path, f"{before}\0y\0".encode(encoding)), encoding)
    assert said.startswith(f", line 5: byte {len(before.encode(encoding))} is a NUL character")


def test_a_surrogate_that_an_encoding_lets_through_is_refused(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, b"uno\ndos \\ud800\n"), "unicode-escape")
    assert said.startswith(", line 2: byte 8 is the lone surrogate U+D800")


@pytest.mark.parametrize(("encoding", "named"), [("latin-1", "cp1252"), ("cp1251", "cp1251"), ("utf-16", "utf_16")])
def test_the_likely_encoding_is_named(encoding: str, named: str, tmp_path: Path) -> None:
    text = "Чёрный ворон, что ты вьёшься над моею головой\n" if encoding == "cp1251" else "la niña bebe agua aquí\n"
    said = refusal(written(tmp_path, ("a" * 300_000 + "\n").encode() * (encoding != "utf-16") + text.encode(encoding)))
    assert re.search(rf"as `encoding` in params\.yaml \(it looks like .*\b{named}\b", said)
    assert refusal(written(tmp_path, "niña".encode()), "ascii").startswith(", line 1: byte 2 (0xc3) is not ascii; ")


@pytest.mark.parametrize("name", ["utf-8", "UTF8", "latin-1", "cp1252", "utf-16", "shift_jis", "utf-8-sig", "koi8-r"])
def test_pythons_encodings_are_taken(name: str) -> None:
    check_encoding(name)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("latn1", "latin1"), ("utf-9", "utf-8"), ("rot13", ""), ("base64", ""), ("a\0b", ""), ("undefined", "")],
)
def test_other_encodings_are_refused(name: str, nearest: str) -> None:
    with pytest.raises(ParamError) as caught:
        check_encoding(name)
    assert str(caught.value).startswith(f'params.yaml: encoding = "{name}": expected an encoding of text')
    assert f"did you mean '{nearest}'" in str(caught.value) or not nearest


def test_every_encoding_of_python_that_is_taken_reads_or_refuses(tmp_path: Path) -> None:
    path = written(tmp_path, b"uno\xa4\n")
    taken = 0
    for name in sorted(set(opening.aliases.values())):
        try:
            check_encoding(name)
        except ParamError:
            continue
        taken += 1
        with suppress(CorpusError):
            whole(path, name)
    assert taken > 80


@pytest.mark.parametrize("block", [1, 2, 5, 2**18])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_where_lines_begin(end: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "BLOCK", block)
    lines = ["uno", "ñu", "犬", "x"]
    path = written(tmp_path, end.join(lines).encode())
    for i in range(len(lines)):
        before = "".join(line + end for line in lines[:i])
        assert place(path, "utf-8", line=i + 1) == (len(before.encode()), i + 1)


def test_a_path_that_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"nope\.txt: no such file or folder; `corpus` in params.yaml names it"):
        list(read_bytes(tmp_path / "nope.txt"))
    with pytest.raises(CorpusError, match="cannot be read: Is a directory"):
        list(read_bytes(tmp_path))

"""The files of a corpus and the records in them."""

from __future__ import annotations

import csv
import io
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import CorpusError
from stages.text.formats import KINDS, Source, find_sources, read_records, whole_lines
from stages.text.opening import read_text

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\ufeff"), max_size=12)


def records(folder: Path, name: str, raw: str | bytes, **wanted: str) -> list[str | None]:
    path = folder / name
    path.write_bytes(raw.encode() if isinstance(raw, str) else raw)
    return records_of(path, **wanted)


def records_of(path: Path, **wanted: str) -> list[str | None]:
    (source,), _ = find_sources(path)
    choices = {"encoding": "utf-8", "text_column": "", "text_field": "text"} | wanted
    texts = (text.replace("\ufeff", "") for text in read_text(path, choices["encoding"]))
    return list(read_records(source, texts, **choices))


def refusal(folder: Path, name: str, raw: str | bytes, **wanted: str) -> str:
    with pytest.raises(CorpusError) as caught:
        records(folder, name, raw, **wanted)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{folder}/{name}")


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_files_of_a_folder_in_the_order_of_their_code_points(tmp_path: Path) -> None:
    names = ["b.txt", "a/z.TSV", "a-b.jsonl.gz", "B.conllu", "é.csv", ".hidden.txt", ".git/a.txt", "a/readme.pdf", "x"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    sources, skipped = find_sources(tmp_path)
    assert [(source.name, source.kind) for source in sources] == [
        ("B.conllu", "conllu"),
        ("a-b.jsonl.gz", "jsonl"),
        ("a/z.TSV", "tsv"),
        ("b.txt", "text"),
        ("é.csv", "csv"),
    ]
    assert skipped == [".git/a.txt", ".hidden.txt", "a/readme.pdf", "gone.txt", "loop", "x"]


def test_one_file_of_any_name_is_text_unless_its_suffix_says_more(tmp_path: Path) -> None:
    for name, kind in (("1984", "text"), ("a.pdf", "text"), ("a.CSV.xz", "csv"), (".hidden", "text")):
        (tmp_path / name).touch()
        assert find_sources(tmp_path / name) == ([Source(tmp_path / name, name, kind)], [])


def test_a_name_that_is_not_utf8_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"ni\xf1a.txt")
    path.touch()
    ((source,), _) = find_sources(tmp_path)
    assert source.name == "ni\\xf1a.txt"


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").touch()
    with pytest.raises(CorpusError, match=r"none of its 1 file\(s\) is visible and of a known kind \(\.txt "):
        find_sources(tmp_path)


# --- blocks -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.text("a b\n", max_size=6)), st.booleans())
def test_blocks_are_the_text_and_end_where_lines_do(texts: list[str], cut_at_spaces: bool) -> None:
    blocks = list(whole_lines(texts, cut_at_spaces=cut_at_spaces))
    assert "".join(blocks) == "".join(texts)
    assert all(blocks)
    for block, following in pairwise(blocks):
        assert block.endswith("\n") or (cut_at_spaces and following.startswith(" "))


def test_a_line_without_end_is_not_held_where_it_may_be_cut() -> None:
    assert [len(block) for block in whole_lines(["ab cd " * 100] * 5, cut_at_spaces=True)] == [
        599,
        600,
        600,
        600,
        600,
        1,
    ]


# --- tables -----------------------------------------------------------------------------------------------------------


def test_quotation_marks_in_tab_files_are_text(shared: Path) -> None:
    assert records_of(shared / "cases/inputs/quotes.tsv", text_column="2") == [
        "Hola.",
        "Corre.",
        "Dijo «no».",
        'Espera "',
        "Adiós.",
    ]
    english = records_of(shared / "cases/inputs/quotes.tsv", text_column="1")
    assert english[1:3] == ['"Run!', 'He said "no" twice.']
    sentences = records_of(shared / "corpora/tatoeba_eng_spa.tsv", text_column="2")
    assert sentences == (shared / "corpora/tatoeba_spa.txt").read_text(encoding="utf-8").splitlines()
    assert len(sentences) == 1000
    english = records_of(shared / "corpora/tatoeba_eng_spa.tsv", text_column="1")
    assert [str(english[i - 1])[0] for i in (407, 576, 762)] == ['"'] * 3


def test_quotation_marks_in_csv_hold_fields_together(tmp_path: Path) -> None:
    raw = 'id,text\r\n1,"uno, dos"\r\n2,"tres\r\ncuatro"\r\n3,"dijo ""no"""\r\n4,\r\n'
    assert records(tmp_path, "a.csv", raw) == ["uno, dos", "tres\ncuatro", 'dijo "no"', None]
    assert records(tmp_path, "a.csv", f"\ufeff{raw}\r\n", text_column="text") == [
        "uno, dos",
        "tres\ncuatro",
        'dijo "no"',
        None,
        "",
    ]
    assert records(tmp_path, "a.csv", "a" * 200_000 + "\n") == ["a" * 200_000]


@pytest.mark.parametrize(
    ("raw", "line", "problem"),
    [
        ('text\nuno\n"dos\ntres\n', 3, "unexpected end of data"),
        ('text\n"a\nb"\n"dos" tres\n', 4, "',' expected after '\"'"),
    ],
)
def test_a_csv_that_would_swallow_lines_is_refused(raw: str, line: int, problem: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, "a.csv", raw).startswith(f", line {line}: a broken record ({problem})")


@pytest.mark.parametrize(
    ("name", "raw", "column", "expected"),
    [
        ("a.tsv", "id\ttext\n1\tuno\n2\t \n3\n\n  \n", "", ["uno", None, None, "", ""]),
        ("a.tsv", "lang\tfrase\nes\tuno\n", "frase", ["uno"]),
        ("a.tsv", "lang\tfrase\nes\tuno\n", "2", ["frase", "uno"]),
        ("a.tsv", "uno dos\ntres\n", "", ["uno dos", "tres"]),
        ("a.tsv", "text\nuno\n", "", ["uno"]),
        ("a.csv", "\nfrase ,b\nuno,2\n", "frase", ["", "uno"]),
        ("a.csv", "", "", []),
    ],
)
def test_the_column_is_found_by_name_or_number(
    name: str, raw: str, column: str, expected: list[str | None], tmp_path: Path
) -> None:
    assert records(tmp_path, name, raw, text_column=column) == expected


@pytest.mark.parametrize("column", ["", "frase", "0", "3", "-1"])
def test_a_column_that_is_not_there_is_refused_with_those_that_are(column: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, "a.tsv", "id\tsentence\n1\tuno\n", text_column=column) == (
        f", line 1: no such column: text_column = '{column}' in params.yaml: expected a name in the first row "
        "('id', 'sentence') or a number from 1 to 2"
    )


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1))
def test_what_python_writes_as_csv_comes_back(rows: list[tuple[str, str]]) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    source = Source(Path("a.csv"), "a.csv", "csv")
    found = read_records(source, [out.getvalue()], encoding="utf-8", text_column="2", text_field="")
    assert list(found) == [None if not text or text.isspace() else text for _, text in rows]


# --- JSONL ------------------------------------------------------------------------------------------------------------


def test_json_lines(tmp_path: Path) -> None:
    raw = '\ufeff{"text": "uno\\nd\\u00f3s 😀 \\ud83d\\ude00"}\r\n{"id": 2}\n{"text": null}\n \n{"text": " "}'
    raw += '\n{"text":"x"}'
    assert records(tmp_path, "a.jsonl", raw) == ["uno\ndós 😀 😀", None, None, "", None, "x"]
    assert records(tmp_path, "a.ndjson", '{"frase": "uno", "text": 1}\n', text_field="frase") == ["uno"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "uno"', "not JSON: Expecting ',' delimiter (character 15)"),
        ('{"text": "uno"} {}', "not JSON: Extra data (character 17)"),
        ('["uno"]', "a JSON array: expected an object in each line"),
        ("1", "a JSON number: expected an object in each line"),
        ('{"text": ["uno"]}', "`text` is a JSON array: expected a string (text_field in params.yaml names it)"),
        ('{"text": true}', "`text` is a JSON boolean: expected a string (text_field in params.yaml names it)"),
        ("[" * 100_000, "not to be read as JSON: maximum recursion depth"),
        (f'{{"a": {"1" * 5000}}}', "not to be read as JSON: Exceeds the limit"),
    ],
)
def test_json_that_cannot_be_used_is_refused_by_its_line(line: str, problem: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, "a.jsonl", f'{{"text": "ñ"}}\n\n{line}\n').startswith(f", line 3: {problem}")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
@pytest.mark.parametrize(
    ("text", "escape", "what"),
    [
        ("ñ\\ud83d\\ude00 \\ud800", "\\ud800", "a lone surrogate"),
        ("\\udC00", "\\udC00", "a lone surrogate"),
        ("ab\\u0000", "\\u0000", "a NUL character"),
    ],
)
def test_escapes_of_what_is_no_text_are_refused_with_their_place(
    encoding: str, text: str, escape: str, what: str, tmp_path: Path
) -> None:
    raw = f'{{"text": "uno"}}\r\n{{"text": "{text}"}}\r\n'
    offset = len(raw[: raw.index(escape)].encode(encoding))
    assert refusal(tmp_path, "a.jsonl", raw.encode(encoding), encoding=encoding) == (
        f", line 2: byte {offset} escapes {what} ({escape}), which is no text; mend the record"
    )


@given(st.lists(st.one_of(TEXTS, st.none())), st.booleans())
def test_what_python_writes_as_json_comes_back(texts: list[str | None], escaped: bool) -> None:
    lines = "".join(json.dumps({"text": text}, ensure_ascii=escaped) + "\n" for text in texts)
    source = Source(Path("a.jsonl"), "a.jsonl", "jsonl")
    found = list(read_records(source, [lines], encoding="utf-8", text_column="", text_field="text"))
    assert found == [text if text and not text.isspace() else None for text in texts]


# --- treebanks --------------------------------------------------------------------------------------------------------


def test_a_treebank_gives_what_its_sentences_spell(shared: Path) -> None:
    assert records_of(shared / "cases/inputs/mwt.conllu") == ["Voy al río del sur."]
    path = shared / "corpora/ud_es_pud_300.conllu"
    spelt = [line.removeprefix("# text = ") for line in path.read_text("utf-8").splitlines() if "# text = " in line]
    assert records_of(path) == spelt
    assert len(spelt) == 300


def test_treebanks_of_several_kinds_of_rows(tmp_path: Path) -> None:
    row = "{}\t{}\t_\t_\t_\t_\t_\t_\t_\t{}\n"
    raw = "# only a comment\n\n\n" + row.format(1, "_", "_") + row.format(2, "nbsp\xa0x", "SpaceAfter=No") + "\n"
    raw += row.format("1-2", "al", "SpaceAfter=No") + row.format(1, "a", "_") + row.format(2, "el", "_")
    raw += row.format("2.1", "vacío", "_") + row.format(3, "!", "Lang=es|SpaceAfter=No")
    assert records(tmp_path, "a.conllu", raw) == [None, "_ nbsp\xa0x", "al!"]


def test_a_broken_treebank_is_refused_by_its_line(tmp_path: Path) -> None:
    good = "1\tVoy\t_\t_\t_\t_\t_\t_\t_\t_\n"
    assert refusal(tmp_path, "a.conllu", f"{good}\n# x\nuno\tdos\n").startswith(
        ", line 3: the sentence that begins here is not CoNLL-U ("
    )
    assert refusal(tmp_path, "a.conllu", f"{good}\n\n1\n").startswith(", line 4: ")


def test_every_suffix_has_a_reader() -> None:
    assert set(KINDS.values()) == {"text", "tsv", "csv", "jsonl", "conllu"}


def test_the_rest_of_a_table_is_not_held(tmp_path: Path) -> None:
    def endless() -> Any:
        while True:
            yield "uno\tdos\n"

    found = read_records(Source(Path("a"), "a", "tsv"), endless(), encoding="utf-8", text_column="2", text_field="")
    assert [next(found) for _ in range(3)] == ["dos"] * 3

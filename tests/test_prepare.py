"""Stage prepare on texts that people bring: the same sentences however they came, and an account that adds up."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from stages.errors import CorpusError, LabError, ParamError
from stages.text import opening
from stages.text.reading import Parts
from tests.conftest import Lab

BASE = "el perro come pan\nla niña bebe agua\nel gato duerme aquí\nla perra come carne\n"
SPLITS = ("train", "valid", "test")


def prepared(lab: Lab, content: str | bytes, name: str = "data/raw/notebook.txt", **choices: Any) -> dict[str, bytes]:
    """What prepare makes of a file."""
    path = lab.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return prepared_of(lab, name, **choices)


def prepared_of(lab: Lab, corpus: str | Path, **choices: Any) -> dict[str, bytes]:
    lab.set(corpus=str(corpus), **choices)
    lab.run("prepare")
    account = lab.read("reports/corpus.json")
    dropped = account["blank_lines_dropped"] + account["records_without_text"]
    assert account["lines_read"] == account["lines_used"] + dropped
    return lab.bytes_of("data/prepared")


def units(name: str = "train") -> list[str]:
    return list(Parts(Path(f"data/prepared/{name}.txt")))


def same_text(lab: Lab) -> dict[str, bytes]:
    """What BASE gives, which every other spelling of it has to give as well."""
    return prepared(lab, BASE)


# --- one text, many spellings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "corpus",
    [
        BASE.replace("\n", "\r\n"),
        BASE.replace("\n", "\r"),
        BASE.rstrip("\n"),
        "\ufeff" + BASE,
        BASE.replace("gato", "ga\ufeffto").replace("la niña", "\ufeffla niña"),
        BASE.replace("\n", "\n\n \t\n"),
        BASE.upper(),
        BASE.replace("ñ", "n\u0303").replace(" ", "\u00a0 "),
        BASE.replace(" ", "\u2028", 1).replace(" ", "\x0b"),
    ],
    ids=[
        "CR LF",
        "CR",
        "no final newline",
        "byte-order mark",
        "marks inside",
        "blank lines",
        "capitals",
        "decomposed",
        "odd separators",
    ],
)
def test_spellings_of_one_text_give_the_same_bytes(lab: Lab, corpus: str) -> None:
    expected = same_text(lab)
    assert prepared(lab, corpus) == expected
    assert expected["data/prepared/train.txt"] == BASE.encode("utf-8")
    account = lab.read("reports/corpus.json")
    assert account["byte_order_marks_removed"] == corpus.count("\ufeff")
    assert account["sentences_used"] == 4


@pytest.mark.parametrize(
    ("name", "content", "choices"),
    [
        ("a.txt.gz", gzip.compress(BASE.encode(), mtime=0), {}),
        ("a.txt", lzma.compress(BASE.encode()), {}),
        ("a", bz2.compress(BASE.replace("\n", "\r\n").encode()), {}),
        ("a.zst", zstandard.ZstdCompressor().compress(BASE.encode()), {}),
        ("a.tsv.gz", gzip.compress("".join(f"x\t{line}\n" for line in BASE.splitlines()).encode()), {"text_column": 2}),
        ("a.csv", "text,n\n" + "".join(f'"{line}",1\r\n' for line in BASE.splitlines()), {}),
        ("a.jsonl", "".join(f'{{"frase": "{line}"}}\n' for line in BASE.splitlines()), {"text_field": "frase"}),
        ("folder/b.txt", BASE, {}),
        ("latin.txt", BASE.encode("latin-1"), {"encoding": "latin-1"}),
        ("wide.txt", BASE.encode("utf-16"), {"encoding": "utf-16"}),
        (
            "p.txt",
            BASE.replace(" come", "\ncome").replace("\nla", "\n\nla").replace("\nel", "\n\nel"),
            {"unit": "paragraph"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 15 else "",
)
def test_files_of_one_text_give_the_same_bytes(
    lab: Lab, name: str, content: str | bytes, choices: dict[str, Any]
) -> None:
    lab.set(valid_fraction=0.25)
    expected = same_text(lab)
    assert expected["data/prepared/valid.txt"]
    prepared(lab, content, name, **choices)
    assert prepared_of(lab, name.split("/")[0]) == expected


def test_the_shared_inputs(lab: Lab, shared: Path) -> None:
    inputs = shared / "cases/inputs"
    expected = prepared_of(lab, inputs / "base.txt")
    assert expected["data/prepared/train.txt"] == (inputs / "base.txt").read_bytes()
    for name in ("bom.txt", "crlf.txt", "no_final_newline.txt", "blank_lines.txt"):
        assert prepared_of(lab, inputs / name) == expected, name
    assert prepared_of(lab, inputs / "latin1.txt", encoding="latin-1") == expected
    lab.set(encoding="utf-8")
    prepared_of(lab, inputs / "good.txt.gz")
    assert units() == gzip.decompress((inputs / "good.txt.gz").read_bytes()).decode().splitlines()
    prepared_of(lab, inputs / "specials.txt")
    assert units() == (inputs / "specials.txt").read_text("utf-8").splitlines()
    prepared_of(lab, inputs / "mwt.conllu", lowercase=False)
    assert units() == ["Voy al río del sur."]
    for name in ("one_sentence.txt", "one_token_lines.txt"):
        prepared_of(lab, inputs / name)
        assert units() == (inputs / name).read_text("utf-8").splitlines()
    for name in ("empty.txt", "only_blanks.txt"):
        with pytest.raises(CorpusError, match=rf"{name}: no sentence in \d line\(s\)$"):
            prepared_of(lab, inputs / name)


def test_the_shared_corpora(lab: Lab, shared: Path) -> None:
    prepared_of(lab, shared / "corpora/wikitext2_valid_head.txt")
    assert sum(unit.count("<unk>") for unit in units()) == 5551
    assert lab.read("reports/corpus.json")["blank_lines_dropped"] == 631
    latin = (shared / "corpora/quijote_utf8_lf.txt").read_text("utf-8").encode("latin-1", "replace")
    expected = prepared(lab, latin.decode("latin-1"))
    assert prepared(lab, latin, "data/raw/latin.txt", encoding="latin-1") == expected
    prepared_of(lab, shared / "corpora/tatoeba_eng_spa.tsv", text_column="2", encoding="utf-8")
    table = lab.bytes_of("data/prepared")
    assert prepared_of(lab, shared / "corpora/tatoeba_spa.txt") == table
    assert lab.read("reports/corpus.json")["lines_read"] == 1000


def test_where_blocks_end_changes_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.set(valid_fraction=0.1, test_fraction=0.1)
    text = "\ufeff" + BASE.upper().replace("\n", "\r\n \r\n") + "ΟΔΟΣ n\u0303 😀\u2028犬\n" * 3
    for unit in ("line", "paragraph", "stream"):
        expected = prepared(lab, text, unit=unit), lab.read("reports/corpus.json")
        for size in (1, 2, 3, 7, 64):
            monkeypatch.setattr(opening, "BLOCK", size)
            assert (prepared(lab, text, unit=unit), lab.read("reports/corpus.json")) == expected
        monkeypatch.undo()
        os.chdir(lab.folder)


def test_marks_are_counted_once_in_every_format(lab: Lab) -> None:
    for name, content in (
        ("a.txt", "\ufeffuno\ufeff\n"),
        ("a.tsv", "\ufefftext\n\ufeffuno\n"),
        ("a.csv", '\ufefftext\n"u\ufeffno"\n'),
        ("a.jsonl", '\ufeff{"text": "uno\\ufeff"}\n'),
    ):
        for unit in ("line", "paragraph", "document", "stream"):
            prepared(lab, content, name, unit=unit)
            assert units() == ["uno"]
            assert lab.read("reports/corpus.json")["byte_order_marks_removed"] == 2


def test_the_order_of_sets_has_no_part(lab: Lab, shared: Path) -> None:
    lab.set(corpus=str(shared / "cases/inputs/ties.txt"), valid_fraction=0.34, vocab_order="frequency", max_vocab=2)
    found = []
    for seed in ("0", "1"):
        for stage in ("stages.prepare", "stages.vocab"):
            environment = os.environ | {"PYTHONHASHSEED": seed}
            subprocess.run([sys.executable, "-m", stage], env=environment, check=True, capture_output=True)
        found.append(lab.bytes_of("data/prepared", "data/vocab", "reports"))
    assert found[0] == found[1]
    assert lab.read("data/vocab/vocab.json")["words"] == ["a", "b"]


# --- the account ------------------------------------------------------------------------------------------------------


def test_the_account_adds_up(lab: Lab) -> None:
    prepared(lab, "\ufeffEl perro\n\nel  perro\nun gato come\n \n")
    account = lab.read("reports/corpus.json")
    params = account.pop("params")
    assert account == {
        "file": "notebook.txt",
        "lines_read": 5,
        "lines_used": 3,
        "blank_lines_dropped": 2,
        "records_without_text": 0,
        "sentences_used": 3,
        "byte_order_marks_removed": 1,
        "lines_changed_by_normalisation": 2,
        "words": 7,
        "longest_sentence_in_words": 3,
        "distinct_sentences": 2,
        "repeated_sentences_kept": 1,
        "sentences_by_split": {"train": 3, "valid": 0, "test": 0},
    }
    assert "corpus" not in params
    assert (params["unit"], params["encoding"], params["valid_fraction"]) == ("line", "utf-8", 0.0)


def test_the_account_of_a_folder_names_its_files(lab: Lab) -> None:
    folder = lab.folder / "texts"
    for i in range(101):
        (folder / f"{i:03}").mkdir(parents=True)
        (folder / f"{i:03}" / "a.txt").write_text(f"frase {i}\n\nfrase 0\n", encoding="utf-8")
    (folder / "z.jsonl").write_text('{"text": "Uno"}\n{}\n{"text": null}\n\n', encoding="utf-8")
    (folder / "notes.pdf").touch()
    (folder / ".DS_Store").touch()
    prepared_of(lab, "texts")
    account = lab.read("reports/corpus.json")
    assert (account["file"], account["files_read"], account["files_skipped"]) == ("texts", 102, 2)
    assert account["skipped"] == [".DS_Store", "notes.pdf"]
    assert (len(account["files"]), account["files_not_listed"]) == (100, 2)
    assert account["files"][1] == {
        "file": "001/a.txt",
        "lines_read": 3,
        "lines_used": 2,
        "blank_lines_dropped": 1,
        "records_without_text": 0,
        "sentences_used": 2,
        "byte_order_marks_removed": 0,
        "lines_changed_by_normalisation": 0,
        "words": 4,
    }
    assert (account["lines_read"], account["records_without_text"], account["blank_lines_dropped"]) == (307, 2, 102)
    assert (account["sentences_used"], account["distinct_sentences"]) == (203, 102)
    assert units()[:3] == ["frase 0", "frase 0", "frase 1"]
    assert units()[-1] == "uno"
    prepared_of(lab, "texts", unit="stream")
    assert lab.read("reports/corpus.json")["files"][1] == {
        "file": "001/a.txt",
        "lines_read": 3,
        "records_without_text": 0,
        "byte_order_marks_removed": 0,
        "lines_changed_by_normalisation": 0,
    }


@pytest.mark.parametrize(("corpus", "lines"), [("", 0), ("\n \n\t\n", 3), ("\ufeff", 1)])
@pytest.mark.parametrize("unit", ["line", "paragraph", "document", "stream"])
def test_a_text_without_sentences_is_refused_by_its_path(lab: Lab, corpus: str, lines: int, unit: str) -> None:
    with pytest.raises(CorpusError, match=rf"^data/raw/notebook\.txt: no sentence in {lines} line\(s\)$"):
        prepared(lab, corpus, unit=unit)
    assert not (lab.folder / "data/prepared").exists()
    assert list((lab.folder / "data").iterdir()) == [lab.folder / "data/raw"]


# --- units ------------------------------------------------------------------------------------------------------------


def test_documents_keep_their_lines_and_are_split_whole(lab: Lab) -> None:
    for i in range(8):
        path = lab.folder / "texts" / f"{i}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"\n Título {i % 4}\r\n\r\n  el  perro\u2028come\n\n", encoding="utf-8", newline="")
    prepared_of(lab, "texts", unit="document", valid_fraction=0.25)
    assert set(units("train") + units("valid")) == {f"título {i}\n\n  el  perro\ncome" for i in range(4)}
    assert (len(units("train")), len(units("valid"))) == (6, 2)
    account = lab.read("reports/corpus.json")
    assert (account["sentences_used"], account["distinct_sentences"], account["lines_used"]) == (8, 4, 24)


def test_a_running_text_is_held_out_from_its_end(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"línea {i // 2 if i > 15 else i}" for i in range(20)]
    prepared(lab, "\n".join(lines), unit="stream", valid_fraction=0.1, test_fraction=0.2, split_seed=1)
    first = lab.bytes_of("data/prepared")
    assert [units(name) for name in SPLITS] == [["\n".join(lines[a:b])] for a, b in ((0, 14), (14, 16), (16, 20))]
    account = lab.read("reports/corpus.json")
    assert account["lines_by_split"] == {"train": 14, "valid": 2, "test": 4}
    assert account["held_out_lines_that_train_has_too"] == 4
    assert "split_seed has no part" in account["held_out"]
    assert "20 lines read as one text (14 train, 2 valid, 4 test)" in capsys.readouterr().out
    assert prepared_of(lab, "data/raw/notebook.txt", split_seed=2) == first


def test_the_grammar_is_a_corpus(lab: Lab) -> None:
    from stages.text.grammar import Grammar

    Path("grammar").touch()  # the word is never a path
    prepared_of(lab, "grammar", grammar_sentences=50, grammar_seed=3, grammar_depth=1, valid_fraction=0.1)
    drawn = list(Grammar(1).sentences(50, 3))
    assert sorted(units("train") + units("valid")) == sorted(drawn)
    account = lab.read("reports/corpus.json")
    assert (account["file"], account["lines_read"], account["sentences_used"]) == ("grammar", 50, 50)


def test_scipy_is_loaded_for_the_grammar_alone(lab: Lab) -> None:
    script = "import sys, stages.prepare as p; p.main(); print([m for m in sys.modules if m.startswith('scipy')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# --- splits -----------------------------------------------------------------------------------------------------------


def test_repeated_sentences_stay_together(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.set(valid_fraction=0.25)
    prepared(lab, BASE * 25)
    assert "100 lines read, 4 distinct sentences of 100 (75 train, 25 valid, 0 test)" in capsys.readouterr().out
    with pytest.raises(LabError, match=r"corpus: 1 distinct sentence\(s\) are too few"):
        prepared(lab, "el perro come pan\n" * 30)


def test_the_shared_duplicates(lab: Lab, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = shared / "cases/inputs"
    prepared_of(lab, inputs / "near_duplicates.txt", valid_fraction=0.25, test_fraction=0.25)
    assert "100 lines read, 4 distinct sentences of 100" in capsys.readouterr().out
    found = {name: set(units(name)) for name in SPLITS}
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == 4
    lines = (inputs / "near_duplicates.txt").read_text("utf-8").splitlines()
    prepared(lab, "\n".join(reversed(lines)))
    assert {name: set(units(name)) for name in SPLITS} == found
    with pytest.raises(LabError, match=r"corpus: 1 distinct sentence\(s\) are too few"):
        prepared_of(lab, inputs / "all_duplicates.txt")


def test_a_tiny_fraction_still_holds_one_sentence_out(lab: Lab) -> None:
    prepared(lab, BASE, valid_fraction=0.01)
    assert lab.read("reports/corpus.json")["sentences_by_split"] == {"train": 3, "valid": 1, "test": 0}


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_bad_text_is_one_line_on_the_terminal_and_keeps_the_old_outputs(lab: Lab, locale: str) -> None:
    before = same_text(lab)
    lab.corpus(BASE.encode("latin-1"))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONUTF8"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "stages.prepare"],
        env=environment | {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(
        b"error: data/raw/notebook.txt, line 2: byte 23 (0xf1) is not UTF-8; name its encoding as `encoding` in "
        b"params.yaml (it looks like "
    )
    assert done.stderr.count(b"\n") == 1
    assert lab.bytes_of("data/prepared") == before


def test_what_cannot_be_read_is_refused_and_keeps_the_old_outputs(lab: Lab) -> None:
    before = same_text(lab), lab.read("reports/corpus.json")
    for name, content, problem in (
        ("a.gz", gzip.compress(BASE.encode())[:-9], r"a\.gz: a gzip archive that is cut short; get it anew"),
        ("a.txt", BASE + "\0", r"a\.txt, line 5: byte 78 is a NUL character"),
        ("a.jsonl", '{"text": "uno"}\n{"text": "\\ud800"}\n', r"a\.jsonl, line 2: byte 26 escapes a lone surrogate"),
        ("a.jsonl", '{"text": "uno"}\n{"text": \n', r"a\.jsonl, line 2: not JSON"),
        ("a.tsv", "uno\tdos\n", r"a\.tsv, line 1: no such column"),
    ):
        with pytest.raises(CorpusError, match=problem):
            prepared(lab, content, name)
        assert (lab.bytes_of("data/prepared"), lab.read("reports/corpus.json")) == before
    with pytest.raises(ParamError, match=r"""encoding = "latn1": expected .* \(did you mean 'latin1'\?\)"""):
        prepared(lab, BASE, encoding="latn1")
    with pytest.raises(CorpusError, match=r"^nope\.txt: no such file or folder; `corpus` in params\.yaml names it$"):
        prepared_of(lab, "nope.txt", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"a{300}: cannot be read: File name too long"):
        prepared_of(lab, "a" * 300)
    assert lab.bytes_of("data/prepared") == before[0]


# --- corpora that are not kept ----------------------------------------------------------------------------------------


def git(*arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def warnings_of(lab: Lab, corpus: str | Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    prepared_of(lab, corpus)
    return [line for line in capsys.readouterr().err.splitlines() if "warning" in line]


def test_a_corpus_that_nothing_keeps_is_warned_of_once(
    lab: Lab, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in ("mine.txt", "texts/a.txt", "texts/b.txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(BASE, encoding="utf-8")
    outside = tmp_path_factory.mktemp("elsewhere") / "theirs.txt"
    outside.write_text(BASE, encoding="utf-8")

    assert warnings_of(lab, "mine.txt", capsys) == []  # no git here, nothing to lose
    git("init")
    assert "`dvc add mine.txt` keeps it" in warnings_of(lab, "mine.txt", capsys)[0]  # no commit yet
    git("add", "params.yaml", "data", "texts/a.txt")
    git("commit", "-m", "Begin")
    Path(".gitignore").write_text("/mine.txt\n", encoding="utf-8")
    said = warnings_of(lab, "mine.txt", capsys)
    assert said == [
        "prepare: warning: mine.txt is not kept by git or DVC, so other machines and queued experiments do not have "
        "it; `dvc add mine.txt` keeps it"
    ]
    assert len(warnings_of(lab, "texts", capsys)) == 1  # one of its files
    assert warnings_of(lab, "texts/a.txt", capsys) == []
    assert warnings_of(lab, lab.folder / "texts/a.txt", capsys) == []
    assert warnings_of(lab, "data/raw/notebook.txt", capsys) == []
    Path("mine.txt.dvc").touch()
    Path("texts.dvc").touch()
    assert [warnings_of(lab, name, capsys) for name in ("mine.txt", "texts", "texts/b.txt")] == [[], [], []]
    (said,) = warnings_of(lab, outside, capsys)
    assert f"`dvc import-url {outside} data/raw/theirs.txt` brings it in" in said


def test_without_git_nothing_is_said(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    git("init")
    Path("mine.txt").write_text(BASE, encoding="utf-8")
    assert len(warnings_of(lab, "mine.txt", capsys)) == 1
    monkeypatch.setenv("PATH", str(lab.folder / "nothing"))
    assert warnings_of(lab, "mine.txt", capsys) == []


def test_a_corpus_that_an_experiment_has_not_got_is_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = lab.folder / ".dvc/tmp/exps/tmp1"
    experiment.mkdir(parents=True)
    for name in ("params.yaml", "dvc.yaml"):
        (experiment / name).write_bytes((lab.folder / name).read_bytes())
    monkeypatch.chdir(experiment)
    with pytest.raises(
        CorpusError, match=r"notebook\.txt: not in this experiment, .*; `dvc add data/raw/notebook\.txt`"
    ):
        lab.run("prepare")

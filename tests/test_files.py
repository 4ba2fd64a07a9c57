"""Files: whole or not at all, and the same bytes each time."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest

from stages import files
from stages.errors import ArtifactError


def test_a_write_replaces_the_whole_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    files.write_text(path, "a long first version\n")
    files.write_text(path, "año\r\n")
    assert path.read_bytes() == b"a\xc3\xb1o\r\n"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]


def test_json_is_strict_readable_and_ends_its_line(tmp_path: Path) -> None:
    assert files.dump_json({"palabra": "ñandú 犬"}) == '{\n "palabra": "ñandú 犬"\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "a.json", {"loss": math.nan})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("records", [[], [{"step": 1}], [{"step": 1, "loss": 0.5}, {"step": 2, "loss": None}]])
def test_records_are_a_json_list_with_one_a_line(records: list[dict[str, float]], tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    files.write_records(path, records)
    assert files.read_json(path) == records
    lines = [line.rstrip(",") for line in path.read_text(encoding="utf-8").splitlines() if line[0] == "{"]
    assert [json.loads(line) for line in lines] == records


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "not there; `dvc repro` makes it"), (b"{", "not readable as JSON"), (b'"\xff"', "not readable as JSON")],
)
def test_an_output_that_is_missing_or_damaged_is_named(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArtifactError, match=words) as caught:
        files.read_json(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "vocab"
    for name in ("old", "new"):
        with files.replacing_folder(folder) as fresh:
            (fresh / name).write_text(name, encoding="utf-8")
    assert [entry.name for entry in folder.iterdir()] == ["new"]
    assert [entry.name for entry in folder.parent.iterdir()] == ["vocab"]


def test_a_failure_half_way_leaves_the_old_folder_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "vocab"
    with files.replacing_folder(folder) as fresh:
        (fresh / "old").touch()
    with pytest.raises(RuntimeError, match="half way"), files.replacing_folder(folder) as fresh:  # noqa: PT012
        (fresh / "new").touch()
        raise RuntimeError("half way")
    assert [entry.name for entry in folder.iterdir()] == ["old"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["vocab"]


def test_digests(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert files.md5_file(tmp_path / "a") == hashlib.md5(b"abc").hexdigest()
    assert files.sha256_json({"b": 1, "a": "ñ"}) == hashlib.sha256('{"a":"ñ","b":1}'.encode()).hexdigest()

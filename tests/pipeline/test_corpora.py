"""Every real corpus, in the way that suits it, from the first stage to the last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stages import files
from tests.pipeline.project import Project

FEW: dict[str, Any] = {
    "max_updates": 30,
    "batch_size": 8,
    "warmup": 10,
    "valid_fraction": 0.1,
    "snapshots": 2,
    "train_sample": 20_000,
}
WINDOWS = {"unit": "stream", "batches": "packed", "context": 32}
CORPORA: list[tuple[str, dict[str, Any], int]] = [  # file, parameters, lines or records in it
    ("tatoeba_spa.txt", {"tokenizer": "bpe", "max_vocab": 800}, 1000),
    ("tatoeba_eng_spa.tsv", {"tokenizer": "word_punct", "text_column": "'2'"}, 1000),
    ("tinyshakespeare_head.txt", {**WINDOWS, "tokenizer": "char", "lowercase": "false"}, 30_000),
    ("ud_es_pud_300.conllu", {"tokenizer": "unigram", "max_vocab": 700}, 300),
    ("wikitext2_valid_head.txt", {"tokenizer": "word", "max_vocab": 3000}, 1800),
    ("quijote_utf8_lf.txt", {**WINDOWS, "tokenizer": "word", "max_vocab": 4000}, 6854),
    ("grammar", {"grammar_sentences": 2000}, 2000),
]


@pytest.mark.slow
@pytest.mark.pipeline
@pytest.mark.parametrize(("name", "changes", "lines"), CORPORA, ids=[name for name, *_ in CORPORA])
def test_it_runs_to_the_end(
    fresh: Callable[..., Project], shared: Path, name: str, changes: dict[str, Any], lines: int
) -> None:
    corpus = name if name == "grammar" else str(shared / "corpora" / name)
    project = fresh(**{"corpus": corpus, **FEW, **changes})
    done = project.run("dvc", "repro")
    account = files.read_json(project.root / "reports/corpus.json")
    assert account["lines_read"] == lines
    used = account["lines_used"] + account["blank_lines_dropped"] + account["records_without_text"]
    assert used == lines
    assert ("dvc import-url" in done.stderr) == (name != "grammar")
    metrics = files.read_json(project.root / "reports/metrics.json")
    loss, interval = metrics["valid"]["loss"], metrics["valid"]["interval"]
    if changes.get("unit") == "stream":  # one text, not a sample of sentences
        assert set(interval.values()) == {None}
    else:
        assert interval["loss_low"] < loss < interval["loss_high"]
    assert ("truth" in metrics) == (name == "grammar")
    assert (project.root / "reports/index.html").stat().st_size > 100_000
    assert len(project.client().search_runs(["1"])) == 1

"""The report says what the files say, in one file that needs nothing else."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from typing import Any

import pytest

from stages.analysis import report
from stages.params import TrainParams

WORST = "</script><b>&amp;\"'"


def run(**changes: Any) -> report.Run:
    """A run of the default parameters; keys with a dot change what is inside."""
    measured = {"loss": 1.5912, "perplexity": 4.9097, "accuracy": 0.625, "tokens": 48, "sentences": 9}
    train = {**measured, "unknown_share": 0.0, "floor": 0.41198, "excess": 1.17922}
    facts: dict[str, Any] = {
        "config": {
            "model": {"vocab_size": 17, "tied_output": False},
            "training": TrainParams().model_dump(),
            "vocab_md5": "0123abcd",
            "updates": 2700,
            "parameters": 365457,
        },
        "metrics": {"measured_on": "training text (no held-out text)", "train": train},
        "corpus": {"file": "notebook.txt", "sentences_by_split": {"train": 9, "valid": 0}},
        "next_words": [
            {"prompt": "", "tokens": ["[bos]"], "unknown": [], "next": [{"word": "el", "probability": 0.7412}]},
            {
                "prompt": "un gato",
                "tokens": ["[bos]", "un", "gato"],
                "unknown": [],
                "next": [{"word": WORST, "probability": 0.9}, {"word": "<unk>", "probability": 0.00001}],
            },
        ],
        "last_rate": 2.98e-5,
    }
    for path, value in changes.items():
        *inside, key = path.split("__")
        place = facts
        for step in inside:
            place = place[step]
        place[key] = value
    return report.Run(**facts)


def pictures(heads: int = 2) -> dict[str, bytes]:
    names = ["loss", "rate", "gradient-norm", "noam-rate", "next-words-p0", "next-words-p1", "attention-p1"]
    names += [f"attention-p1-L0H{head}" for head in range(heads)]
    return {name: f"<svg>{name}</svg>".encode() for name in names}


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, facts: report.Run, images: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.html = report.page(facts, images or pictures())
        self.feed(self.html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_page_is_well_formed_and_alone() -> None:
    page = Page(run())
    assert page.open == []
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    sources = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert sources
    assert all(source is not None and source.startswith("data:") for source in sources)
    assert "http" not in page.html.replace("http-equiv", "")
    assert "url(" not in page.html


def test_the_page_can_be_read_aloud() -> None:
    page = Page(run())
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    assert page.all("img")
    assert all(attributes["alt"] for attributes in page.all("img"))
    identities = Counter(attributes["id"] for _, attributes in page.tags if "id" in attributes)
    assert set(identities.values()) == {1}


def test_every_picture_is_in_the_page_once() -> None:
    assert len({image["src"] for image in Page(run()).all("img")}) == len(pictures())


def test_words_are_text_whatever_they_hold() -> None:
    page = Page(run())
    assert WORST in page.text
    assert "<unk>" in page.text
    assert WORST not in page.html
    assert "</script>" not in page.html


def test_unknown_words_are_flagged() -> None:
    facts = run()
    facts.next_words[1]["unknown"] = ["<i>dragón</i>"]
    page = Page(facts)
    assert "Not in the vocabulary" in page.text
    assert "<i>dragón</i>" in page.text
    assert "Not in the vocabulary" not in Page(run()).text


def test_numbers_of_the_training_text() -> None:
    shown = {tile.name: (tile.value, tile.note) for tile in report.tiles(run())}
    assert shown["Loss"] == ("1.5912", "nats per token, training text")
    assert shown["Perplexity"][0] == "4.91"
    assert shown["Accuracy"][0] == "62.5 %"
    assert shown["Excess"][0] == "1.1792"
    assert "0.4120" in shown["Excess"][1]
    assert shown["Updates"][0] == "2\u202f700"
    assert shown["Parameters"][0] == "365\u202f457"


def test_held_out_text_comes_first() -> None:
    held_out = {"loss": 2.5, "perplexity": 12.18, "accuracy": 0.4, "tokens": 9, "sentences": 2, "unknown_share": 0.1}
    facts = run(metrics__valid=held_out, metrics__test=None)
    assert report.tiles(facts)[0] == ("Loss", "2.5000", "nats per token, validation text")
    page = Page(facts)
    assert "10.0 %" in page.text
    assert "measuretrainvalid" in page.text


def test_a_corpus_too_large_for_its_floor() -> None:
    facts = run()
    del facts.metrics["train"]["floor"], facts.metrics["train"]["excess"]
    assert next(tile for tile in report.tiles(facts) if tile.name == "Excess").value == "–"
    assert Page(facts).open == []


def test_a_perplexity_beyond_a_float() -> None:
    facts = run(metrics__train__perplexity=None, metrics__train__loss=812.0)
    assert "> 10³⁰⁰" in Page(facts).text
    assert "None" not in Page(facts).text


@pytest.mark.parametrize(
    ("schedule", "warmup", "warned"),
    [("noam", 40000, True), ("noam", 2700, True), ("noam", 2699, False), ("none", 40000, False)],
)
def test_the_warmup_is_warned_of_where_the_run_ends_within_it(schedule: str, warmup: int, warned: bool) -> None:
    facts = run(config__training__schedule=schedule, config__training__warmup=warmup)
    assert bool(report.warmup_warning(facts)) == warned
    assert ("ended within its warm-up" in Page(facts).text) == warned


def test_every_parameter_is_listed_with_its_meaning() -> None:
    text = Page(run()).text
    for key, field in TrainParams.model_fields.items():
        assert key in text
        assert (field.description or "") in text


def test_the_account_of_the_corpus_is_complete() -> None:
    text = Page(run()).text
    for line in ("notebook.txt", "sentences by split: train", "sentences by split: valid"):
        assert line in text


def test_a_single_token_has_no_attention() -> None:
    assert Page(run()).text.count("no attention to show") == 1


def test_many_heads_are_left_to_the_folder() -> None:
    page = Page(run(), pictures(heads=report.MAX_HEADS + 7))
    assert len(page.all("img")) == 7 + report.MAX_HEADS
    assert "The other 7 pictures lie in reports/figures" in page.text
    assert "reports/figures" not in Page(run()).text


def test_sources_and_the_way_on_are_named() -> None:
    text = Page(run()).text
    for part in ("Attention Is All You Need", "2017", "Adam: A Method for Stochastic Optimization", "2015", "make ui"):
        assert part in text

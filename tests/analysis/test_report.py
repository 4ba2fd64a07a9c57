"""The report says what the files say, in one file that needs nothing else."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import pytest

from stages.analysis import report
from stages.params import WITHOUT_EFFECT, TrainParams
from tests.analysis.test_outcome import LAST

WORST = "</script><b>&amp;\"'"


MORE = {
    "bits_per_character": 0.5123,
    "bits_per_byte": 0.4987,
    "accuracy_top5": 0.9375,
    "ece": 0.0832,
    "gain": 0.25,
    "baseline": {"uniform": 2.8332, "unigram": 2.4924, "trigram": 1.8412},
    "interval": None,
}
INTERVAL = {"loss_low": 1.4, "loss_high": 1.75, "ece_low": 0.07, "ece_high": 0.2, "gain_low": 0.1, "gain_high": 0.4}


def run(**changes: Any) -> report.Run:
    """A run of the default parameters; keys with two underscores change what is inside."""
    measured = {"loss": 1.5912, "perplexity": 4.9097, "accuracy": 0.625, "tokens": 48, "sentences": 9}
    train = {**measured, **MORE, "unknown_share": 0.0, "floor": 0.41198, "excess": 1.17922}
    facts: dict[str, Any] = {
        "config": {
            "model": {"vocab_size": 17, "tied_output": False},
            "training": TrainParams().model_dump(exclude=WITHOUT_EFFECT),
            "vocab_md5": "0123abcd",
            "updates": 2700,
            "parameters": 365457,
        },
        "metrics": {
            "measured_on": "training text (no held-out text)",
            "context": 512,
            "stride": 256,
            "counted_tokens": 48000,
        },
        "replicas": [{"seed": 0, "train": train}],
        "agreement": [],
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
        "updates": 2700,
        "last_rate": 2.98e-5,
    }
    for path, value in changes.items():
        *inside, key = path.split("__")
        place = facts
        for step in inside:
            place = place[step]
        place[key] = value
    return report.Run(**facts)


def replicas(*losses: float | None, **gone: int) -> report.Run:
    """Seeds from 0 on with these losses; `s2=99` says that seed 2 diverged at update 99."""
    facts = run()
    (one,) = facts.replicas
    entries = []
    for seed, loss in enumerate(losses):
        excess, perplexity = (None, None) if loss is None else (loss - 0.41198, 2.0 * loss)
        train = one["train"] | {"loss": loss, "excess": excess, "perplexity": perplexity, "accuracy": 0.1 * seed}
        entry = {"seed": seed, "train": train}
        if f"s{seed}" in gone:
            entry |= {"diverged_at": gone[f"s{seed}"], "last_finite": LAST}
        entries.append(entry)
    return facts._replace(replicas=entries)


def of(facts: report.Run, name: str) -> report.Tile:
    return next(tile for tile in report.tiles(facts) if tile.name == name)


def alone(**changes: Any) -> report.Run:
    """A single run that diverged at update 26 and has no finite loss."""
    return replicas(None, s0=26)._replace(**{"updates": 25, **changes})


def pictures(heads: int = 2) -> dict[str, bytes]:
    names = [
        "loss",
        "rate",
        "gradient-norm",
        "noam-rate",
        "calibration",
        "next-words-p0",
        "next-words-p1",
        "attention-p1",
        "heads-p1",
    ]
    names += [f"attention-p1-L0H{head}" for head in range(heads)]
    return {name: f"<svg>{name}</svg>".encode() for name in names}


SEVERAL = pictures() | {"replicas": b"<svg>replicas</svg>"}


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
    facts = run()
    facts.replicas[0]["valid"] = held_out
    assert report.tiles(facts)[0] == ("Loss", "2.5000", "nats per token, validation text", "")
    page = Page(facts)
    assert "10.0 %" in page.text
    assert "measuretrain95% intervalvalid95% interval" in page.text


def test_a_corpus_too_large_for_its_floor() -> None:
    facts = run()
    del facts.replicas[0]["train"]["floor"], facts.replicas[0]["train"]["excess"]
    assert next(tile for tile in report.tiles(facts) if tile.name == "Excess").value == "–"
    assert Page(facts).open == []


def test_a_perplexity_beyond_a_float() -> None:
    facts = run()
    facts.replicas[0]["train"] |= {"perplexity": None, "loss": 812.0}
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
    for key in TrainParams.model_fields.keys() - WITHOUT_EFFECT:
        assert key in text
        assert (TrainParams.model_fields[key].description or "") in text


def test_replicas_have_means_with_spread_and_interval() -> None:
    facts = replicas(1.0, 2.0, 3.0)
    assert of(facts, "Loss").value == "2.0000"
    assert of(facts, "Loss").spread == "±\xa01, 95%\xa0interval -0.4841\xa0to\xa04.484"
    assert of(facts, "Excess").value == "1.5880"
    assert of(facts, "Perplexity")[1::2] == ("4", "±\xa02, 95%\xa0interval -0.9683\xa0to\xa08.968")
    assert of(facts, "Accuracy")[1::2] == ("10.0 %", "±\xa010.0\xa0%, 95%\xa0interval -14.8\xa0to\xa034.8\xa0%")
    page = Page(facts, SEVERAL)
    assert "means over 3 runs that differ in the seed alone" in " ".join(page.text.split())
    assert "3 seeds, 0 to 2" in page.text
    assert not [tile for tile in report.tiles(run()) if tile.spread]


def test_replicas_are_listed_each_with_its_numbers() -> None:
    page = Page(replicas(1.25, None, 3.5, s1=1234), SEVERAL)
    rows = [line for line in page.html.splitlines() if line.startswith('<tr><th scope="row" class="n">')]
    cells = [re.findall(r"<t[hd][^>]*>([^<]*)", row) for row in rows]
    assert cells[0] == ["0", "1.2500", "0.8380", "2.5", "0.0 %", "–"]
    assert cells[1][:5] == ["1", "–", "–", "–", "–"]
    assert cells[1][5] == "1\u202f234, last measured 2.3457 on the training text after update 90"
    assert cells[2] == ["2", "3.5000", "3.0880", "7", "20.0 %", "–"]
    assert len(cells) == 3
    assert len({image["src"] for image in page.all("img")}) == len(SEVERAL)
    assert page.open == []
    assert all(attributes["alt"] for attributes in page.all("img"))


def test_held_out_text_has_columns_of_its_own() -> None:
    facts = replicas(1.0, 2.0)
    for entry in facts.replicas:
        entry["valid"] = entry["train"] | {"loss": 7.5}
    text = Page(facts, SEVERAL).text
    assert "seedloss, trainloss, validexcess, trainperplexity, validaccuracy, validdiverged at" in text
    assert of(facts, "Loss")[:3] == ("Loss", "7.5000", "nats per token, validation text")


def test_the_page_says_which_replica_the_words_are_of() -> None:
    assert "All of this is of the first replica, seed 0." in Page(replicas(1.0, 2.0), SEVERAL).text
    assert "replica" not in Page(run()).text.partition("Parameters")[0]


def test_of_many_replicas_the_first_are_listed() -> None:
    page = Page(replicas(*[1.0] * (report.MAX_REPLICAS + 7)), SEVERAL)
    assert page.html.count('<tr><th scope="row" class="n">') == report.MAX_REPLICAS
    assert "7 more in reports/replicas.json" in page.text
    assert "more in reports/replicas.json" not in Page(replicas(1.0, 2.0), SEVERAL).text


def test_a_run_that_diverged_says_so_first() -> None:
    facts = alone()
    page = Page(facts)
    (box,) = [attributes for attributes in page.all("p") if attributes.get("role") == "note"]
    assert box["class"] == "warning"
    text = " ".join(page.text.split())
    assert "Diverged at update 26: the loss or the gradient was no longer finite, and training stopped." in text
    assert "Weights and curves are those of the 25 updates before." in text
    assert "Last measured: loss 2.3457 on the training text after update 90." in text
    assert "What helps: lower factor, raise warmup, set clip." in text
    assert text.index("Diverged") < text.index("Perplexity")
    assert "ended within its warm-up" not in text  # it ended for another reason
    assert "iverged" not in Page(run()).text


def test_numbers_that_are_not_finite_are_dashes() -> None:
    facts = alone()
    assert [of(facts, name).value for name in ("Loss", "Perplexity", "Accuracy", "Excess")] == ["–"] * 4
    assert of(facts, "Loss").note == (
        "nats per token, training text; not finite, last measured 2.3457 on the training text after update 90"
    )
    assert of(facts, "Updates")[1:3] == ("25", "then it diverged; 300 epochs were asked for")
    text = Page(facts).text
    assert "None" not in text
    assert "nan" not in text
    assert "> 10³⁰⁰" not in text


def test_nothing_was_done_and_nothing_measured() -> None:
    facts = alone(updates=0, last_rate=None)
    facts.replicas[0] |= {"diverged_at": 1, "last_finite": None}
    facts.next_words[0]["next"][0]["probability"] = None
    text = Page(facts).text
    assert "Diverged at update 1:" in text
    assert "No update was made. What helps" in text
    assert "Last measured" not in text
    assert of(facts, "Loss").note == "nats per token, training text; not finite"
    assert "None" not in text


def test_replicas_that_diverged_are_named_and_the_rest_has_its_means() -> None:
    facts = replicas(1.0, None, 3.0, 5.0, s1=99, s3=1234)
    text = " ".join(Page(facts, SEVERAL).text.split())
    assert "2 of 4 replicas diverged: seed 1 at update 99, seed 3 at update 1 234." in text
    assert "ended within its warm-up" in text  # for the others did
    assert of(facts, "Loss").value == "3.0000"
    assert of(facts, "Loss").spread.startswith("3 of 4 seeds: ±\xa02,")
    assert of(facts, "Updates").note == "of the seed that got furthest; 300 epochs were asked for"


def test_no_replica_is_left() -> None:
    facts = replicas(*[None] * 20, **{f"s{i}": 7 for i in range(20)})
    text = " ".join(Page(facts, SEVERAL).text.split())
    assert "20 of 20 replicas diverged: seed 0 at update 7," in text
    assert "seed 7 at update 7 and 12 more." in text
    assert "ended within its warm-up" not in text
    assert of(facts, "Loss")[1:] == ("–", "nats per token, training text; not finite for any seed", "")
    assert "None" not in text


def test_one_replica_with_a_finite_loss_has_no_spread() -> None:
    assert of(replicas(1.0, None, s1=2), "Loss").spread == "1 of 2 seeds"


@pytest.mark.parametrize(
    ("changes", "helps"),
    [
        ({}, "lower factor, raise warmup, set clip."),
        ({"schedule": "none"}, "lower lr, set clip."),
        ({"schedule": "constant", "decay": 0.1, "clip": 1.0}, "lower lr or decay or clip, raise warmup."),
    ],
)
def test_the_advice_names_what_this_run_can_change(changes: dict[str, Any], helps: str) -> None:
    facts = alone()
    facts.config["training"] |= changes
    assert f"What helps: {helps}" in Page(facts).text


def test_a_number_fits_its_tile() -> None:
    assert '<b class="long">1.130e+12</b>' in Page(replicas(1130392427665.7778, s0=40)).html
    assert '<b class="long">' not in Page(run()).html


def test_the_updates_end_as_max_updates_says() -> None:
    assert of(run(), "Updates").note == "300 epochs"
    assert of(run(config__training__max_updates=2700), "Updates").note == "max_updates, within 300 epochs"


def test_the_account_of_the_corpus_is_complete() -> None:
    text = Page(run()).text
    for line in ("notebook.txt", "sentences by split: train", "sentences by split: valid"):
        assert line in text


def test_a_single_token_has_no_attention() -> None:
    assert Page(run()).text.count("no attention to show") == 1


def test_many_heads_are_left_to_the_folder() -> None:
    page = Page(run(), pictures(heads=report.MAX_HEADS + 7))
    assert len(page.all("img")) == 9 + report.MAX_HEADS
    assert "The other 7 pictures lie in reports/figures" in page.text
    assert "reports/figures" not in Page(run()).text


def test_sources_and_the_way_on_are_named() -> None:
    text = Page(run()).text
    for part in ("Attention Is All You Need", "2017", "Adam: A Method for Stochastic Optimization", "2015", "make ui"):
        assert part in text


# --- trust in the numbers ---------------------------------------------------------------------------------------------


def rows(page: Page, mark: str = "") -> list[list[str]]:
    """The cells of each row of a table, of the tables from a heading on."""
    html = page.html.partition(f'id="{mark}"')[2] if mark else page.html
    found = re.findall(r"<tr>(.*?)</tr>", html.partition("</table>")[0].replace("\n", ""))
    return [re.findall(r"<t[hd][^>]*>([^<]*)", row) for row in found]


def with_intervals(**changes: Any) -> report.Run:
    facts = run()
    facts.replicas[0]["train"] |= {"interval": INTERVAL} | changes
    return facts


def test_a_single_run_has_intervals_over_its_sentences() -> None:
    facts = with_intervals()
    assert of(facts, "Loss").spread == "95%\xa0interval 1.4\xa0to\xa01.75"
    assert of(facts, "Accuracy").spread == ""
    table = {title: cells for title, *cells in rows(Page(facts), "results")}
    assert table["loss (nats per token)"] == ["1.5912", "1.4\xa0to\xa01.75"]
    assert table["calibration error"] == ["8.3 %", "7.0\xa0to\xa020.0\xa0%"]
    assert table["bits per character"] == ["0.5123", ""]
    assert table["accuracy, one of five"] == ["93.8 %", ""]
    assert "over the sentences of a text (percentile bootstrap)" in Page(facts).text


def test_the_interval_of_replicas_is_over_seeds_and_not_over_sentences() -> None:
    facts = replicas(1.0, 2.0, 3.0)
    for entry in facts.replicas:
        entry["train"] |= {"interval": INTERVAL}
    page = Page(facts, SEVERAL)
    table = {title: cells for title, *cells in rows(page, "results")}
    assert table["loss (nats per token)"] == ["2.0000", "-0.4841\xa0to\xa04.484"]
    assert table["standard deviation of the loss"] == ["1.0000", ""]
    assert "percentile bootstrap" not in page.text


def test_the_context_and_what_was_counted_are_stated() -> None:
    text = " ".join(Page(run()).text.split())
    assert "longer than 512 tokens is read in windows that move on by 256" in text
    assert "Counted were the first 48 000 tokens of the training text" in text


def test_counting_stands_beside_the_model() -> None:
    facts = with_intervals()
    facts.replicas[0]["valid"] = facts.replicas[0]["train"] | {"interval": None, "gain": -0.5}
    assert rows(Page(facts), "counting")[1:] == [
        ["train", "2.8332", "2.4924", "1.8412", "1.5912", "0.2500 (0.1\xa0to\xa00.4)"],
        ["valid", "2.8332", "2.4924", "1.8412", "1.5912", "-0.5000"],
    ]


@pytest.mark.parametrize("gain", [0.25, 0.0, None])
def test_a_model_that_is_no_worse_than_counting_is_not_warned_of(gain: float | None) -> None:
    assert "loses to counting" not in Page(with_intervals(gain=gain)).text


def test_a_model_that_loses_to_counting_is_warned_of() -> None:
    facts = with_intervals(gain=-0.2, interval=INTERVAL | {"gain_low": -0.3, "gain_high": -0.1})
    text = " ".join(Page(facts).text.split())
    assert (
        "The model loses to counting. On the training text a Kneser-Ney 3-gram of the same training text has 1.8412 "
        "nats per token, 0.2000 less than the model (95% interval 0.1 to 0.3)."
    ) in text
    facts.replicas[0]["valid"] = facts.replicas[0]["train"] | {"gain": 0.1}
    assert "loses to counting" not in Page(facts).text  # the held-out text counts most


TRUTH = {
    "excess": 0.0712,
    "excess_error": 0.0041,
    "loss": 1.7032,
    "true_loss": 1.632,
    "entropy": 1.6279,
    "agreement_number": 0.97,
    "agreement_gender": 0.91,
    "tokens": 7740,
    "sentences": 1000,
    "unknown_share": 0.0,
}
AGREEMENT = [
    {"feature": "number", "by": "all", "value": None, "items": 1579, "right": 1532, "accuracy": 0.97, "low": 0.96,
     "high": 0.98},
    {"feature": "gender", "by": "attractors", "value": 2, "items": 20, "right": 18, "accuracy": 0.9, "low": 0.7,
     "high": 0.97},
]  # fmt: skip


def test_a_corpus_of_the_grammar_is_set_against_it() -> None:
    facts = run(agreement=AGREEMENT)
    facts.replicas[0]["truth"] = TRUTH
    page = Page(facts, pictures() | {"truth": b"<svg>t</svg>", "agreement": b"<svg>a</svg>"})
    table = rows(page, "truth")
    assert ["excess ± its standard error", "0.0712 ± 0.0041"] in table
    assert ["agreement of adjective and subject, gender", "91.0 %"] in table
    assert ["entropy of the grammar", "1.6279"] in table
    cells = [re.findall(r"<t[hd][^>]*>([^<]*)", row) for row in re.findall(r"<tr>(.*?)</tr>", page.html)]
    assert ["verb and subject, number", "all places", "1\u202f579", "97.0 % (96.0 to 98.0 %)"] in cells
    assert [
        "adjective and subject, gender",
        "nouns of the other form between: 2",
        "20",
        "90.0 % (70.0 to 97.0 %)",
    ] in cells
    assert page.open == []
    assert "Against the grammar" not in Page(run()).text


def test_of_replicas_the_excess_has_its_interval_over_seeds() -> None:
    facts = replicas(1.0, 2.0)._replace(agreement=AGREEMENT)
    for entry, excess in zip(facts.replicas, (0.1, 0.2), strict=True):
        entry["truth"] = TRUTH | {"excess": excess}
    page = Page(facts, SEVERAL | {"agreement": b"<svg>a</svg>"})
    assert ["excess (mean, 95% interval over seeds)", "0.1500 (-0.4853 to\xa00.7853)"] in rows(page, "truth")

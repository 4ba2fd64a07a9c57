"""A comparison in words and tables says what the tables say, whatever the names are."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len

from stages.analysis import study_report, study_text
from stages.analysis.question import Comparison, Statement
from tests.analysis.made_up import made, optimizers, rates_and_ramps, warm_ups
from tests.analysis.test_fonts import WORDS

WORST = "</script><b>|`*_[x](http://e.com) www.e.com @you #1 &amp;\"'"
PICTURES = {name: f"<svg>{name}</svg>".encode() for name in ("curves", "against-warmup", "differences", "rates")}


def named(*names: str, **changes: Any) -> Comparison:
    """Listed variants with these names; what is said of them has the last name."""
    variants = {name: {"variant": name} for name in names}
    one = made(variants, lambda levels: 2.0 + names.index(levels["variant"]), **{"baseline": names[0], **changes})
    return replace(one.comparison, statements=[Statement("real", f"{names[-1]} is worse.")])


def with_sensitivity() -> Comparison:
    row = {
        "block": "post",
        "over": "lr",
        "n": 5,
        "value": 0.381,
        "low": 0.3,
        "high": 0.45,
        "best": "0.003",
        "edge": True,
    }
    return replace(warm_ups().comparison, sensitivity=pd.DataFrame([row]))


class Page(HTMLParser):
    """The tags of a page with their attributes, its text, and the cells of its tables below each heading."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.rows: dict[str, list[list[str]]] = {}
        self.html = study_report.page(comparison, PICTURES)
        self.feed(self.html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "h2":
            self.rows[dict(attrs)["id"] or ""] = []
        elif tag == "tr":
            list(self.rows.values())[-1].append([])
        elif tag in ("th", "td"):
            list(self.rows.values())[-1][-1].append("")
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"th", "td"} & set(self.open):
            list(self.rows.values())[-1][-1][-1] += data.replace("\xa0", " ")
        if self.open and self.open[-1] != "style":
            self.text += data


def test_the_page_is_well_formed_and_alone() -> None:
    page = Page(with_sensitivity())
    assert page.open == []
    assert not {"script", "link", "iframe", "object", "a"} & {tag for tag, _ in page.tags}
    sources = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert len(sources) == len(PICTURES)
    assert all(source is not None and source.startswith("data:image/svg+xml") for source in sources)
    assert "http" not in page.html.replace("http-equiv", "")
    assert "url(" not in page.html
    assert "default-src 'none'" in page.html


def test_the_page_can_be_read_aloud_and_looks_like_the_other_one() -> None:
    page = Page(with_sensitivity())
    assert all(attributes["alt"] for tag, attributes in page.tags if tag == "img")
    identities = Counter(attributes["id"] for _, attributes in page.tags if "id" in attributes)
    assert set(identities.values()) == {1}
    assert "prefers-color-scheme: dark" in page.html
    assert "@media print" in page.html


def test_the_words_come_first() -> None:
    assert list(Page(with_sensitivity()).rows) == [
        "said", "expectations", "variants", "target", "differences", "sensitivity", "pictures", "method", "again",
        "references",
    ]  # fmt: skip
    text = " ".join(Page(with_sensitivity()).text.split())
    assert text.index("A is better than B") < text.index("depth matters") < text.index("3.3834")


def test_what_there_is_none_of_has_no_heading() -> None:
    one = replace(warm_ups(target=None, command="").comparison, expectations=[], differences=pd.DataFrame())
    assert list(Page(one).rows) == ["said", "variants", "pictures", "method", "references"]


def test_the_tables_of_the_page_hold_the_numbers() -> None:
    one = with_sensitivity()
    rows = Page(one).rows
    first, second = (row for _, row in one.variants.head(2).iterrows())
    assert rows["variants"][1] == [
        "block=post, warmup=none", "4", f"{first['mean']:.4f}", f"{first['std']:.4f}",
        f"{first['low']:.4f} to {first['high']:.4f}", f"{first['median']:.4f}", "1", "8 (7 to 9)",
    ]  # fmt: skip
    assert rows["variants"][2][2] == f"{second['mean']:.4f}"
    assert rows["target"][1] == ["block=post, warmup=none", "4", "150", "2.5"]
    difference = one.differences.iloc[0]
    assert rows["differences"][1] == [
        "block=post, warmup=none", "block=post, warmup=100", "4", f"{difference['difference']:+.4f}",
        f"{difference['low']:+.4f} to {difference['high']:+.4f}", "0.062", "0.125", f"{difference['effect']:+.2f}",
        "cannot be said: 4 pairs of seeds, fewer than five",
    ]  # fmt: skip
    assert rows["sensitivity"][1] == ["post", "lr", "5", "0.3810", "0.3000 to 0.4500", "0.003", "yes"]
    assert [row[0] for row in rows["expectations"][1:]] == ["held", "did not hold", "not checked"]


def test_missing_runs_have_a_column_where_there_are_any() -> None:
    one = warm_ups().comparison
    assert "missing" not in study_text.variant_rows(one)[0]
    head, rows = study_text.variant_rows(replace(one, variants=one.variants.assign(missing=[2] + [0] * 7)))
    assert rows[0][head.index("missing")] == "2"


def test_a_single_baseline_is_not_repeated_in_each_row() -> None:
    head, _ = study_text.difference_rows(rates_and_ramps().comparison)
    assert "baseline" not in head


@pytest.mark.parametrize(
    ("p", "words"), [(0.0625, "0.062"), (0.0003, "< 0.001"), (0.0005, "0.001"), (1.0, "1.000"), (math.nan, "–")]
)
def test_a_small_p_is_not_zero(p: float, words: str) -> None:
    assert study_text.probability(p) == words


@pytest.mark.parametrize(
    ("found", "words"),
    [(2.41999, "2.4200"), (123456.7, "1.235e+05"), (-0.5, "-0.5000"), (math.nan, "–"), (None, "–"), (math.inf, "–")],
)
def test_values_have_four_decimals(found: float | None, words: str) -> None:
    assert study_text.value(found) == words


def test_names_are_text_in_the_page_whatever_they_hold() -> None:
    page = Page(named("a", WORST))
    assert [row[0] for row in page.rows["variants"][1:]] == ["a", WORST]
    assert "<b>|" not in page.html


@pytest.mark.parametrize("width", [80, 100])
def test_the_terminal_is_as_wide_as_asked(width: int) -> None:
    names = ["warmup=400, loss=notebook", *WORDS.values(), "ロング" * 30, "x" * 200]
    for one in (with_sensitivity(), optimizers().comparison, named(*names)):
        lines = study_text.terminal(one, width).splitlines()
        assert max(map(cell_len, lines)) <= width
        assert len(lines) > 20


def test_the_terminal_has_names_and_numbers_on_a_line_and_the_words_last() -> None:
    one = with_sensitivity()
    text = study_text.terminal(one).replace("\xa0", " ")
    (line,) = [line for line in text.splitlines() if line.startswith("block=pre, warmup=100 ")][:1]
    assert line.split()[2:5] == ["5", f"{one.variants['mean'].iloc[6]:.4f}", f"{one.variants['std'].iloc[6]:.4f}"]
    assert text.splitlines()[-4:] == [
        "real: A is better than B by 0.777 nats/token.",
        "not told apart: C is not told apart from B.",
        "cannot be said: D has 3 seeds, fewer than five.",
        "note: The best lr lies at the edge of its grid.",
    ]


def test_the_terminal_loses_no_letter_of_a_long_name() -> None:
    name = "".join(chr(0x4E00 + i) for i in range(90))
    text = study_text.terminal(named("a", name))
    assert all(text.count(letter) >= 3 for letter in name)  # variants, differences, words


def test_a_name_cannot_move_the_cursor() -> None:
    text = study_text.terminal(named("a", "b\x1b[2Jc\nd[bold]e"))
    assert "\x1b" not in text
    assert "‹U+001B›" in text.replace("\n", "")
    assert "[bold]" in text.replace("\n", "")


def test_markdown_says_the_words_first_and_folds_the_rest() -> None:
    text = study_text.markdown(with_sensitivity(), {"curves": "https://example.com/a.png"})
    assert text.index("- **real**: A is better") < text.index("| variant |") < text.index("<details>")
    assert text.count("<details>") == text.count("</details>") == 5
    assert "![curves](<https://example.com/a.png>)" in text
    assert text.rstrip().endswith("```sh\nnoam study run warm-up\n```")


def test_markdown_tables_have_as_many_cells_in_each_row() -> None:
    text = study_text.markdown(named("a", WORST, "b|c\nd"))
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("| ")]
    assert len(tables) == 4
    for table in tables:
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in table}
        assert len(counts) == 1


def test_names_are_text_in_markdown_whatever_they_hold() -> None:
    text = study_text.markdown(named("a", WORST))
    assert "</script>" not in text
    assert r"\</script\>\<b\>\|\`\*\_\[x\]" in text
    assert re.search(r"[@#]\w|://|www\.", text) is None


def test_a_long_comparison_still_fits_into_a_comment() -> None:
    names = [f"{'long ' * 50}{i}" for i in range(150)]
    one = replace(named(*names, seeds=2), statements=[Statement("real", f"{name} is worse." * 9) for name in names])
    text = study_text.markdown(replace(one, sensitivity=with_sensitivity().sensitivity))
    assert len(text) < 65536
    assert "100 more rows in the CSV file." in text
    assert "- 110 more on the page." in text


def test_a_command_with_backticks_stays_in_its_block() -> None:
    text = study_text.markdown(warm_ups(command="noam ```x```").comparison)
    assert text.rstrip().endswith("````sh\nnoam ```x```\n````")


def test_the_csv_has_a_row_a_variant_with_its_difference() -> None:
    one = warm_ups().comparison
    rows = list(csv.DictReader(io.StringIO(study_text.csv_of(one))))
    assert [row["variant"] for row in rows] == list(one.variants["variant"])
    assert float(rows[1]["mean"]) == one.variants["mean"].iloc[1]
    assert float(rows[1]["difference_low"]) == one.differences["low"].iloc[1]
    assert rows[0]["pairs"] == "4"
    assert rows[2]["verdict"] == "baseline"
    assert rows[2]["difference"] == ""
    assert "low_x" not in rows[0]


def test_json_has_everything_and_no_number_that_is_none() -> None:
    gone = {("block=post, warmup=none", seed): 3 for seed in range(5)}
    one = replace(warm_ups(gone=gone).comparison, winner="x")
    found = study_text.json_of(one)
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text) == found
    assert found["variants"][0]["mean"] is None
    assert found["variants"][1]["mean"] == one.variants["mean"].iloc[1]
    assert found["question"]["factors"]["block"] == ["post", "pre"]
    assert found["statements"][0] == {"kind": "real", "text": "A is better than B by 0.777 nats/token."}
    assert found["expectations"][2]["held"] is None
    assert found["winner"] == "x"
    assert set(found) == {"question", "variants", "differences", "sensitivity", "edges", "winner", "statements",
                          "expectations"}  # fmt: skip


def test_json_keeps_truths_and_whole_numbers() -> None:
    table = pd.DataFrame([{"n": np.int64(5), "edge": np.bool_(True), "value": np.inf, "best": None}])
    found = study_text.json_of(replace(warm_ups().comparison, sensitivity=table))["sensitivity"]
    assert found == [{"n": 5, "edge": True, "value": None, "best": None}]
    assert type(found[0]["edge"]) is bool
    seeds = study_text.json_of(warm_ups(tuning_seeds=(np.int64(3),)).comparison)["question"]["tuning_seeds"]
    assert json.dumps(seeds) == "[3]"


def test_how_it_was_compared_names_what_was_kept_fixed_and_tuned() -> None:
    one = warm_ups(tuned=("lr",), tuning_seeds=(100, 101), trials={"adam": 12, "sgd": 8})
    text = " ".join(study_text.method(one.comparison))
    assert "Comparisons keep fixed: block." in text
    assert "Tuned: lr, on seeds 100, 101. Trials: adam: 12; sgd: 8." in text
    assert "a loss of 2.8" in text
    assert "Tuned" not in " ".join(study_text.method(rates_and_ramps(target=None).comparison))

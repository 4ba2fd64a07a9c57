"""A comparison in words and tables: for the terminal, as Markdown, CSV and JSON, and as rows for the page.

Tables as in `stages.analysis.question`. What is missing is a dash, in CSV nothing and in JSON null.
"""

from __future__ import annotations

import io
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from stages.analysis.outcome import number
from stages.analysis.question import Comparison, Expectation

Row = list[str]
MAX_ROWS, MAX_STATEMENTS = 50, 40  # in Markdown: a comment on GitHub holds 65 536 characters
_CELL, _SENTENCE = 100, 500  # characters, likewise
KINDS = {"real": "real", "not real": "not told apart", "cannot be said": "cannot be said", "note": "note"}
_HELD = {True: "held", False: "did not hold", None: "not checked"}
_MARKDOWN = re.compile(r"[\\`*_\[\]<>|~$&!]")
_MENTION = re.compile(r"[@#](?=\w)|:(?=//)|\bwww(?=\.)")  # a name calls nobody, and is no link
_DIFFERENCE = {"n": "pairs", "low": "difference_low", "high": "difference_high"}  # beside the columns of a variant


def variant_rows(comparison: Comparison) -> tuple[Row, list[Row]]:
    """Head and rows of the table of variants; columns that say nothing here are left out."""
    shown: list[tuple[str, Any]] = [
        ("variant", lambda row: row["variant"]),
        ("seeds", lambda row: _count(row["n"])),
        ("mean", lambda row: value(row["mean"])),
        ("std", lambda row: value(row["std"])),
        ("95% interval", lambda row: interval(row["low"], row["high"])),
        ("median", lambda row: value(row["median"])),
        ("diverged", lambda row: _count(row["diverged"])),
        ("missing", lambda row: _count(row["missing"])),
        ("rank", lambda row: f"{_count(row['rank'])} ({interval(row['rank_low'], row['rank_high'], _count)})"),
    ]
    if not comparison.variants["missing"].any():
        shown = [column for column in shown if column[0] != "missing"]
    return [name for name, _ in shown], [
        [words(row) for _, words in shown] for _, row in comparison.variants.iterrows()
    ]


def target_rows(comparison: Comparison) -> tuple[Row, list[Row]]:
    """Head and rows of the table of steps and seconds to the target; no rows where there is none."""
    head = ["variant", "seeds that reached it", "steps", "seconds"]
    if comparison.question.target is None:
        return head, []
    rows = [
        [row["variant"], _count(row["reached"]), _count(row["steps_to_target"]), _short(row["seconds_to_target"])]
        for _, row in comparison.variants.iterrows()
    ]
    return head, rows


def difference_rows(comparison: Comparison) -> tuple[Row, list[Row]]:
    """Head and rows of the table of differences; with several baselines each row names its own."""
    several = len(comparison.differences) and comparison.differences["baseline"].nunique() > 1
    head = ["variant", *(["baseline"] if several else []), "pairs", "difference", "95% interval", "p", "p (Holm)",
            "effect", "verdict"]  # fmt: skip
    rows = [
        [
            row["variant"],
            *([row["baseline"]] if several else []),
            _count(row["n"]),
            signed(row["difference"]),
            interval(row["low"], row["high"], signed),
            probability(row["p"]),
            probability(row["p_holm"]),
            _signed(row["effect"], 2),
            f"{row['verdict']}: {row['reason']}" if row["reason"] else row["verdict"],
        ]
        for _, row in comparison.differences.iterrows()
    ]
    return head, rows


def sensitivity_rows(comparison: Comparison) -> tuple[Row, list[Row]]:
    """Head and rows of the table of sensitivities to the learning rate."""
    table = comparison.sensitivity
    known = ("over", "n", "value", "low", "high", "best", "edge")
    own = [name for name in table.columns if name not in known]
    head = [*own, "over", "seeds", "sensitivity", "95% interval", "best", "at the edge"]
    rows = [
        [*(str(row[name]) for name in own), row["over"], _count(row["n"]), value(row["value"]),
         interval(row["low"], row["high"]), str(row["best"]), number(bool(row["edge"]))]
        for _, row in table.iterrows()
    ]  # fmt: skip
    return head, rows


def expectation_rows(expectations: Iterable[Expectation]) -> tuple[Row, list[Row]]:
    """Head and rows of what was expected, and what was found."""
    head = ["", "expected", "found", "remark"]
    return head, [[_HELD[one.held], one.text, value(one.found), one.remark or "–"] for one in expectations]


def method(comparison: Comparison) -> list[str]:
    """How it was compared, a sentence or two for each part."""
    question = comparison.question
    found = [
        "Runs are paired: seed s gives the same initial weights and the same order of the data whatever the variant. "
        "Differences are taken seed by seed, variant minus baseline.",
        "Means have Student's 95% intervals; differences, ranks and sensitivities 95% bootstrap intervals over seeds, "
        "those of differences bias-corrected and accelerated (BCa; Efron 1987).",
        "p is that of a paired permutation test: how often differences with signs drawn at random have a mean as far "
        "from 0. p (Holm) is corrected for all comparisons with the same baseline (Holm 1979). Effect is the mean of "
        "the differences over their standard deviation.",
        "A difference is real if there are five pairs or more, no run of either variant diverged or is missing, the "
        "interval excludes 0 and p (Holm) is at most 0.05.",
        "A winner is named if it differs from every other variant in that sense, its best levels are not at the edge "
        "of their grids, and tuning was fair: the same number of trials for all, on other seeds than those reported.",
    ]
    if question.within:
        found.append(f"Comparisons keep fixed: {', '.join(question.within)}. Each group has its own baseline.")
    if question.tuned:
        seeds = ", ".join(map(str, question.tuning_seeds)) or "the reported ones"
        trials = "; ".join(f"{name}: {number(count)}" for name, count in question.trials.items())
        found.append(f"Tuned: {', '.join(question.tuned)}, on seeds {seeds}.{f' Trials: {trials}.' if trials else ''}")
    if question.target is not None:
        found.append(
            f"Steps and seconds are those to a loss of {question.target:g}, the median over the seeds that reached it."
        )
    if len(comparison.sensitivity):
        found.append(
            "Sensitivity is the mean over the grid of rates of min(loss, loss at the start), minus the best loss; a "
            "run that diverged counts as the loss at the start (Wortsman et al. 2023)."
        )
    return found


def metric(comparison: Comparison) -> str:
    """The metric, which values are better, and the baseline, in words."""
    question = comparison.question
    return f"{question.metric}, {question.direction} is better; baseline: {question.baseline}"


def terminal(comparison: Comparison, width: int = 100) -> str:
    """Tables and words as plain text, at most `width` columns wide (80 or more); long names go on in the next line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False, force_terminal=False)

    def say(text: str) -> None:
        console.print(Text(printable(text), overflow="fold"))

    def show(title: str, head_and_rows: tuple[Row, list[Row]], words: Iterable[str] = ()) -> None:
        head, rows = head_and_rows
        if rows:
            table = Table(
                box=None, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left", title_style=""
            )
            for name in head:
                left = name in ("variant", "baseline", "verdict", *words)
                table.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=not left)
            for row in rows:
                table.add_row(*(Text(printable(cell)) for cell in row))
            console.print(table)
            say("")

    say(comparison.question.title)
    say(metric(comparison))
    say("")
    show("Variants", variant_rows(comparison))
    show("To the target", target_rows(comparison))
    show("Differences", difference_rows(comparison))
    show("Sensitivity", sensitivity_rows(comparison), comparison.question.factors)
    show("Expected", expectation_rows(comparison.expectations), ("", "expected", "remark"))
    for one in comparison.statements:
        say(f"{KINDS[one.kind]}: {one.text}")
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines()) + "\n"


def markdown(comparison: Comparison, pictures: Mapping[str, str] | None = None) -> str:
    """Words, tables and pictures (address by name) for a comment on a pull request: what is long is folded."""
    question = comparison.question
    parts = [f"### {escaped(question.title)}"]
    parts += [escaped(question.text)] if question.text else []
    said = [f"- **{KINDS[one.kind]}**: {_cut(one.text, _SENTENCE)}" for one in comparison.statements]
    more = [f"- {number(len(said) - MAX_STATEMENTS)} more on the page."] if len(said) > MAX_STATEMENTS else []
    parts.append("\n".join([*said[:MAX_STATEMENTS], *more]))
    parts.append(escaped(metric(comparison)))
    parts.append(_table(variant_rows(comparison)))
    if comparison.expectations:
        parts.append(_table(expectation_rows(comparison.expectations)))
    if len(comparison.differences):
        parts.append(_folded("Differences to the baseline", _table(difference_rows(comparison))))
    if question.target is not None:
        parts.append(_folded("Steps and seconds to the target", _table(target_rows(comparison))))
    if len(comparison.sensitivity):
        parts.append(_folded("Sensitivity to the learning rate", _table(sensitivity_rows(comparison))))
    if pictures:
        shown = "\n\n".join(f"![{escaped(name)}](<{_address(place)}>)" for name, place in pictures.items())
        parts.append(_folded("Pictures", shown))
    how = "\n".join(f"- {escaped(sentence)}" for sentence in method(comparison))
    parts.append(_folded("How it was compared", how))
    if question.command:
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", question.command)), default=0))
        parts.append(f"{fence}sh\n{question.command}\n{fence}")
    return "\n\n".join(part for part in parts if part) + "\n"


def csv_of(comparison: Comparison) -> str:
    """One row a variant: its columns, and those of its difference to the baseline; a baseline has none."""
    table = comparison.variants
    if len(comparison.differences):
        differences = comparison.differences.rename(columns=_DIFFERENCE)
        table = table.merge(differences, how="left", on="variant")
        table = table.assign(verdict=table["verdict"].fillna("baseline"), pairs=table["pairs"].astype("Int64"))
    return str(table.to_csv(index=False, lineterminator="\n"))


def json_of(comparison: Comparison) -> dict[str, Any]:
    """Everything, in values of strict JSON: what is missing or not finite is null."""
    tables = {name: getattr(comparison, name).to_dict("records")
              for name in ("variants", "differences", "sensitivity", "edges")}  # fmt: skip
    found = {
        "question": asdict(comparison.question),
        **tables,
        "winner": comparison.winner,
        "statements": [asdict(one) for one in comparison.statements],
        "expectations": [asdict(one) for one in comparison.expectations],
    }
    return {name: _plain(part) for name, part in found.items()}


def value(found: float | None) -> str:
    """Four decimals, of large numbers four digits; a dash for what is missing."""
    if found is None or not math.isfinite(found):
        return "–"
    return f"{found:.4f}" if abs(found) < 1e4 else f"{found:.4g}"


def signed(found: float | None) -> str:
    """`value` with its sign."""
    return value(found) if found is None or not found > 0 else f"+{value(found)}"


def interval(low: float, high: float, words: Any = value) -> str:
    """The bounds in words; a dash where there are none."""
    return "–" if pd.isna(low) or pd.isna(high) else f"{words(low)}\xa0to\xa0{words(high)}"


def probability(p: float) -> str:
    """Three digits after the point; what they cannot show is told from zero."""
    return "–" if pd.isna(p) else "< 0.001" if p < 0.0005 else f"{p:.3f}"


def printable(text: str) -> str:
    """Without characters that would move a cursor or end a line: they are shown as their codes."""
    return "".join(f"‹U+{ord(char):04X}›" if unicodedata.category(char) in ("Cc", "Cs") else char for char in text)


def escaped(text: str) -> str:
    """Text that Markdown on GitHub shows as it is: no markup, no link and no mention."""
    return _MENTION.sub(lambda found: f"{found[0]}\u2060", _MARKDOWN.sub(r"\\\g<0>", printable(text)))


def _table(head_and_rows: tuple[Row, list[Row]]) -> str:
    head, rows = head_and_rows
    lines = [
        _line(head),
        _line(["---"] * len(head)),
        *(_line(_cut(cell, _CELL) for cell in row) for row in rows[:MAX_ROWS]),
    ]
    more = f"\n\n{number(len(rows) - MAX_ROWS)} more rows in the CSV file." if len(rows) > MAX_ROWS else ""
    return "\n".join(lines) + more


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cut(text: str, most: int) -> str:
    return escaped(text if len(text) <= most else text[: most - 1] + "…")


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"


def _address(place: str) -> str:
    return place.replace("<", "%3C").replace(">", "%3E").replace("\n", "%0A")


def _count(found: float) -> str:
    return "–" if pd.isna(found) else number(int(found)) if float(found).is_integer() else f"{found:g}"


def _short(found: float) -> str:
    return "–" if pd.isna(found) else f"{found:.3g}"


def _signed(found: float, decimals: int) -> str:
    return "–" if pd.isna(found) or not math.isfinite(found) else f"{found:+.{decimals}f}"


def _plain(part: Any) -> Any:
    """The same in lists, dicts, text, truths, whole numbers and finite numbers; None for what is missing."""
    if isinstance(part, Mapping):
        return {str(key): _plain(inner) for key, inner in part.items()}
    if isinstance(part, list | tuple):
        return [_plain(inner) for inner in part]
    if isinstance(part, np.generic):
        part = part.item()
    return None if part is pd.NA or part is pd.NaT or (isinstance(part, float) and not math.isfinite(part)) else part

"""One page that tells a comparison: words first, then tables and pictures, in a single file that needs no network."""

from __future__ import annotations

from collections.abc import Mapping

from stages.analysis import study_text, template
from stages.analysis.question import Comparison

_TEMPLATE = "study_report.html.j2"
_PICTURES = {  # name, or its beginning → title and words for those who do not see it
    "curves": ("Loss while training", "Mean loss over seeds against the update, a line a variant, with 95% bands."),
    "against-": ("At the end, by {}", "The metric at the end against {}, with 95% intervals."),
    "heatmap": ("Over two factors", "Heatmap of the metric at the end over two factors; the best cell is framed."),
    "differences": ("Differences", "Paired differences with their intervals; the table holds the same numbers."),
    "parallel": ("All factors", "A line a variant through its level of each factor to the metric at the end."),
    "rates": ("Learning rates", "The learning rate of each update, a line for variants with the same rates."),
    "profile": ("Over corpora", "The share of corpora on which a variant is within a ratio of the best."),
}


def page(comparison: Comparison, pictures: Mapping[str, bytes]) -> str:
    """The comparison as HTML; `pictures` holds SVG files by the names of `stages.analysis.study_figures.figures`."""
    return template.rendered(
        _TEMPLATE,
        question=comparison.question,
        metric=study_text.metric(comparison),
        statements=[(one.kind, study_text.KINDS[one.kind], one.text) for one in comparison.statements],
        expectations=study_text.expectation_rows(comparison.expectations),
        tables=[
            ("variants", "Variants", study_text.variant_rows(comparison)),
            ("target", "To the target", study_text.target_rows(comparison)),
            ("differences", "Differences to the baseline", study_text.difference_rows(comparison)),
            ("sensitivity", "Sensitivity to the learning rate", study_text.sensitivity_rows(comparison)),
        ],
        words={"variant", "baseline", "verdict", "expected", "remark", "over", "", *comparison.question.factors},
        pictures=[(*_described(name), svg) for name, svg in pictures.items()],
        method=study_text.method(comparison),
    )


def _described(name: str) -> tuple[str, str]:
    for start, (title, words) in _PICTURES.items():
        if name.startswith(start):
            rest = name.removeprefix(start)
            return title.format(rest), words.format(rest)
    return name, name
